"""Tabby's /v1/completions and /v1/health, under /tabby (crates/tabby/src/services/completion.rs and health.rs)."""

from __future__ import annotations

import os
import platform
from typing import Any

import msgspec

import onward
from onward.api.openai.fold import Identity
from onward.api.reply import OneChoice
from onward.completions.delta import Delta, TokenCounts
from onward.completions.request import CompletionRequest, InfillContext
from onward.errors import InvalidRequest
from onward.protocol.dialects.decode import check_fields, request_fields
from onward.protocol.dialects.tabby import COMPLETION, MAX_DECODING_TOKENS
from onward.server.dialects.services import Services
from onward.server.exchange import Exchange
from onward.server.routes import Route

CRLF = "\r\n"
SNIPPETS = ("relevant_snippets_from_recently_opened_files", "relevant_snippets_from_changed_files", "declarations")
"""Fields with parts of other files, the most important last."""


class Tabby:
    """The endpoints, with OpenAI's errors: Tabby's own have no body."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/tabby/v1/completions", self.complete),
            Route("GET", "/tabby/v1/health", self.health),
        ]

    async def complete(self, exchange: Exchange, _: str | None = None) -> None:
        """Complete what is between two texts, or a prompt."""
        profile = self._services.profile
        checked = await self._services.decode(exchange, lambda fields: check_fields(fields, COMPLETION, profile))
        exchange.record.user = checked.get("user") or "-"
        has_crlf = CRLF in (checked.get("prefix") or "") + (checked.get("suffix") or "")
        await self._services.complete(exchange, _request(checked, has_crlf=has_crlf), TabbyReply(has_crlf=has_crlf))

    async def health(self, exchange: Exchange, _: str | None = None) -> None:
        """Describe the first model and the machine."""
        version = {
            "build_date": "",
            "build_timestamp": "",
            "git_sha": "",
            "git_describe": f"onward {onward.__version__}",
        }
        answer = {
            "model": self._services.model(None).id,
            "device": "cpu",
            "arch": platform.machine(),
            "cpu_info": platform.processor() or "unknown",
            "cpu_count": os.cpu_count() or 1,
            "cuda_devices": [],
            "version": version,
        }
        await exchange.respond(200, msgspec.json.encode(answer), "application/json")


def _request(checked: dict[str, Any], *, has_crlf: bool) -> CompletionRequest:
    """Return the request. Where lines end in CR LF, the model sees LF only, as in Tabby. Raises InvalidRequest."""
    fields = request_fields(checked, "suffix")
    common: dict[str, Any] = {"max_tokens": MAX_DECODING_TOKENS, "fill_context": True}
    if checked.get("raw_prompt"):
        return CompletionRequest(prompt=checked["raw_prompt"], **fields, **common)
    prefix, suffix = checked.get("prefix") or "", checked.get("suffix") or ""
    if not prefix and not suffix:
        raise InvalidRequest("'segments' is empty: send the text around the cursor in it.", param="segments")
    if has_crlf:
        prefix, suffix = prefix.replace(CRLF, "\n"), suffix.replace(CRLF, "\n")
    files = tuple(snippet for name in SNIPPETS for snippet in reversed(checked.get(name) or ()))
    infill = InfillContext(files) if suffix or files else None
    return CompletionRequest(prompt=prefix, suffix=suffix or None, infill=infill, **fields, **common)


class TabbyReply(OneChoice):
    """Writes one answer; Tabby has no streams."""

    def __init__(self, *, has_crlf: bool) -> None:
        super().__init__(is_stream=False)
        self._has_crlf = has_crlf

    def write(self, delta: Delta, counts: TokenCounts) -> bytes:
        self._texts.append(delta.text)
        return b""

    def finish(self, counts: TokenCounts) -> bytes:
        text = "".join(self._texts)
        if self._has_crlf:
            text = text.replace("\n", CRLF)
        return msgspec.json.encode({"id": Identity().id, "choices": [{"index": 0, "text": text}]})
