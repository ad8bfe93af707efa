"""Tabby's /v1/completions and /v1/health, under /tabby (crates/tabby/src/services: completion.rs and health.rs,
0214a92), with OpenAI's errors: Tabby's own have no body."""

from __future__ import annotations

import os
import platform
from typing import Any

import msgspec

import onward
from onward.api.decoder import request_fields
from onward.api.fields import only, own, same, shared, unused
from onward.api.openai.reply import Identity
from onward.api.parameter import FieldTable, Parameter
from onward.api.reply import OneChoice
from onward.api.routes import JSON, Exchange, Route, Services, respond_json
from onward.completions.answer import Delta, TokenCounts
from onward.completions.request import CompletionRequest, InfillContext
from onward.errors import InvalidRequest

NAME = "tabby"
MAX_DECODING_TOKENS = 64
"""Tabby's own limit of a completion, which requests cannot change."""

SEGMENTS: tuple[Parameter, ...] = (
    own("prefix", "string", NAME, "The text before the cursor.", required=True, example="def fib(n):\n    "),
    own("suffix", "string", NAME, "The text after the cursor.", example="\n"),
    own("declarations", "snippets", NAME, "`{filepath, body}` of declarations that the prefix uses.", max_items=1024),
    own("relevant_snippets_from_changed_files", "snippets", NAME, "Snippets of changed files.", max_items=1024),
    own("relevant_snippets_from_recently_opened_files", "snippets", NAME, "Snippets of opened files.", max_items=1024),
    unused("filepath", "string", NAME, "nothing is looked up in a repository."),
    unused("git_url", "string", NAME, "nothing is looked up in a repository."),
    unused("clipboard", "string", NAME, "Tabby does not put it into the prompt either."),
    only("edit_history", NAME, {}, why="Suggestions of the next edit do not exist here."),
)

COMPLETION = FieldTable(
    own("segments", "object", NAME, "The text around the cursor, and snippets of others.", inner=SEGMENTS,
        example={"prefix": "def fib(n):\n    ", "suffix": "\n"}),
    same("temperature", "temperature", NAME, default=0.1),
    *shared(NAME, "seed", "user"),
    own(
        "debug_options", "object", NAME, "Options of tests.", example={"raw_prompt": "x = "},
        inner=(
            own("raw_prompt", "string", NAME, "A prompt to continue as it is, instead of `segments`.", example="x = "),
            only("return_snippets", NAME, False, why="Only `false` is accepted."),
            only("return_prompt", NAME, False, why="Only `false` is accepted."),
            unused("disable_retrieval_augmented_code_completion", "boolean", NAME, "nothing is retrieved."),
        ),
    ),
    unused("language", "string", NAME, "a completion ends where the model ends it, in all languages."),
    only("mode", NAME, "standard", why="Suggestions of the next edit do not exist here."),
)  # fmt: skip

CRLF = "\r\n"
SNIPPETS = ("relevant_snippets_from_recently_opened_files", "relevant_snippets_from_changed_files", "declarations")
"""Fields with parts of other files, the most important last."""


async def complete(services: Services, exchange: Exchange) -> None:
    """Complete what is between two texts, or a prompt."""
    checked = await services.fields(exchange, COMPLETION)
    exchange.record.user = checked.get("user") or "-"
    has_crlf = CRLF in (checked.get("prefix") or "") + (checked.get("suffix") or "")
    await services.complete(exchange, _request(checked, has_crlf=has_crlf), TabbyReply(has_crlf=has_crlf))


async def health(services: Services, exchange: Exchange) -> None:
    """Describe the first model and the machine."""
    version = {
        "build_date": "",
        "build_timestamp": "",
        "git_sha": "",
        "git_describe": f"onward {onward.__version__}",
    }
    answer = {
        "model": services.model(None).id,
        "device": "cpu",
        "arch": platform.machine(),
        "cpu_info": platform.processor() or "unknown",
        "cpu_count": os.cpu_count() or 1,
        "cuda_devices": [],
        "version": version,
    }
    await respond_json(exchange, answer)


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


ROUTES = (
    Route(
        "POST",
        "/tabby/v1/completions",
        complete,
        "tabbyComplete",
        "Complete what is between two texts.",
        body=COMPLETION,
        example={JSON: {"id": "cmpl-C47L3RG6ICY37W3Q0flVHr4BPTPMS", "choices": [{"index": 0, "text": " upon a"}]}},
    ),
    Route(
        "GET",
        "/tabby/v1/health",
        health,
        "tabbyHealth",
        "Describe the server.",
        example={JSON: {"model": "storyteller", "device": "cpu"}},
    ),
)
