"""text-generation-inference's own API (router/src/server.rs, db931fc): /generate, /generate_stream, / and /info."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

import onward
from onward.completions.request import CompletionRequest
from onward.protocol.dialects.decode import Table, check_fields, request_fields
from onward.protocol.dialects.rows import UNLIMITED_TOKENS
from onward.protocol.dialects.tgi import COMPATIBLE, GENERATE
from onward.server.dialects.services import Services
from onward.server.dialects.tgi_errors import ERRORS
from onward.server.dialects.tgi_reply import TgiOptions, TgiReply
from onward.server.exchange import Exchange
from onward.server.routes import Route

MAX_STOPS = 64
_WARPERS = ("temperature", "top_k", "top_p", "typical_p")
"""Parameters that mean sampling, also without `do_sample`."""


class Tgi:
    """The endpoints."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/generate", self.generate, words=ERRORS),
            Route("POST", "/generate_stream", self.generate_stream, words=ERRORS),
            Route("POST", "/", self.compatible, words=ERRORS),
            Route("GET", "/info", self.info, words=ERRORS),
        ]

    async def generate(self, exchange: Exchange, _: str | None = None) -> None:
        """Complete a prompt."""
        await self._complete(exchange, GENERATE)

    async def generate_stream(self, exchange: Exchange, _: str | None = None) -> None:
        """Complete a prompt as a stream."""
        await self._complete(exchange, GENERATE, stream=True)

    async def compatible(self, exchange: Exchange, _: str | None = None) -> None:
        """Complete a prompt, as a stream if the body says so; a whole answer is an array of one."""
        await self._complete(exchange, COMPATIBLE, in_array=True)

    async def _complete(self, exchange: Exchange, rows: Table, *, stream: bool = False, in_array: bool = False) -> None:
        profile = self._services.profile

        def check(fields: dict[str, object]) -> tuple[dict[str, Any], bool]:
            return check_fields(fields, rows, profile), fields.get("parameters") is not None

        checked, has_parameters = await self._services.decode(exchange, check)
        stream = stream or checked.get("stream", False)
        request = _request(checked, stream=stream, samples_by_default=not has_parameters)
        info = await self._services.backend.tokenizer_info(request.model)
        end = info.eos_token or ""
        ids = await self._services.backend.tokenize(request.model, end, False) if end else []
        options = TgiOptions(
            prompt=checked["inputs"] or "" if checked["return_full_text"] else "",
            has_details=checked["details"],
            num_top=checked["top_n_tokens"],
            in_array=in_array,
            end_token=(ids[0] if len(ids) == 1 else 0, end),
            special=frozenset(info.special_tokens),
        )
        await self._services.complete(exchange, request, TgiReply(request, options))

    async def info(self, exchange: Exchange, _: str | None = None) -> None:
        """Describe the server and the first model."""
        model = self._services.model(None)
        described = await self._services.backend.tokenizer_info(model.id)
        answer = {
            "model_id": model.id,
            "model_sha": None,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": self._services.settings.max_waiting,
            "max_best_of": 1,
            "max_stop_sequences": MAX_STOPS,
            "max_input_tokens": described.context_length - 1,
            "max_total_tokens": described.context_length,
            "validation_workers": 1,
            "max_client_batch_size": 1,
            "router": "onward",
            "version": onward.__version__,
            "sha": None,
            "docker_label": None,
        }
        await exchange.respond(200, msgspec.json.encode(answer), "application/json")


def _request(checked: dict[str, Any], *, stream: bool, samples_by_default: bool) -> CompletionRequest:
    """Return the request. Sampling has a seed, which the details report. Stop strings are part of the text.

    Without `parameters` the server samples, with them only where they say so (default_parameters).
    """
    fields = request_fields(checked, "stream", "grammar") | (checked.get("grammar") or {})
    limit = checked.get("max_new_tokens")
    samples = checked.get("do_sample", samples_by_default) or any(checked.get(name) is not None for name in _WARPERS)
    if not samples:
        fields["temperature"] = 0.0
        fields.pop("seed", None)
    elif "seed" not in fields:
        fields["seed"] = secrets.randbits(63)
    return CompletionRequest(
        **fields,
        prompt=checked["inputs"] or "",
        stream=stream,
        max_tokens=UNLIMITED_TOKENS if limit is None else limit,
        fill_context=limit is None,
        logprobs=checked["top_n_tokens"],
        include_stop_str_in_output=True,
    )
