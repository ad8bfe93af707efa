"""Ollama's native API (docs/api.md, fb30760): /api/generate, and what plug-ins ask before: tags, show, ps, version."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import msgspec

import onward
from onward.api.reply import Stopwatch
from onward.completions.request import CompletionRequest
from onward.errors import InvalidRequest
from onward.models.registry import ListedModel
from onward.protocol.dialects.decode import check_fields, request_fields
from onward.protocol.dialects.ollama import GENERATE, SHOW, TEMPLATE
from onward.protocol.dialects.rows import UNLIMITED_TOKENS
from onward.server.dialects.ollama_reply import ERRORS, OllamaReply, now
from onward.server.dialects.services import Services
from onward.server.exchange import Exchange
from onward.server.routes import Route

Object = dict[str, Any]

LATEST = ":latest"
ARCHITECTURE = "onward"
"""Prefix of keys in `model_info`, where Ollama has a model's architecture."""
NEVER = "2318-01-01T00:00:00Z"
"""When a model expires: never, which Ollama writes as a year as far away."""


class Ollama:
    """The endpoints of Ollama that need no chat and no files."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/api/generate", self.generate, words=ERRORS),
            Route("POST", "/api/show", self.show, words=ERRORS),
            Route("GET", "/api/tags", self.tags, words=ERRORS),
            Route("GET", "/api/ps", self.processes, words=ERRORS),
            Route("GET", "/api/version", self.version, words=ERRORS),
        ]

    async def generate(self, exchange: Exchange, _: str | None = None) -> None:
        """Complete a prompt. Without one, say that the model is loaded, which it always is."""
        stopwatch = Stopwatch()
        profile = self._services.profile
        checked = await self._services.decode(exchange, lambda fields: check_fields(fields, GENERATE, profile))
        name = checked["model"] or ""
        model = self._served_name(name)
        if not checked.get("prompt") and not checked.get("suffix"):
            self._services.model(model)
            loaded = {"model": name, "created_at": now(), "response": "", "done": True, "done_reason": "load"}
            await _respond(exchange, loaded)
            return
        request = _request(checked, model)
        reply = OllamaReply(request, name, stopwatch)
        await self._services.complete(exchange, request, reply)

    async def show(self, exchange: Exchange, _: str | None = None) -> None:
        """Describe a model."""
        profile = self._services.profile
        checked = await self._services.decode(exchange, lambda fields: check_fields(fields, SHOW, profile))
        if not checked.get("model"):
            raise InvalidRequest("model is required", param="model")
        model = self._services.model(self._served_name(checked["model"]))
        info = await self._services.backend.tokenizer_info(model.id)
        answer: Object = {
            "modelfile": "",
            "parameters": "",
            "template": TEMPLATE,
            "details": _details(info.context_length),
            "model_info": {
                "general.architecture": ARCHITECTURE,
                f"{ARCHITECTURE}.context_length": info.context_length,
                f"{ARCHITECTURE}.vocab_size": info.vocab_size,
            },
            "capabilities": ["completion", *(["insert"] if info.infill else [])],
            "modified_at": _modified(model),
        }
        await _respond(exchange, answer)

    async def tags(self, exchange: Exchange, _: str | None = None) -> None:
        """List the models."""
        models = self._services.backend.models()
        listed = [_listed(model) | {"modified_at": _modified(model)} for model in models]
        await _respond(exchange, {"models": listed})

    async def processes(self, exchange: Exchange, _: str | None = None) -> None:
        """List the models that are loaded: all."""
        listed: list[Object] = []
        for model in self._services.backend.models():
            info = await self._services.backend.tokenizer_info(model.id)
            more = {"expires_at": NEVER, "size_vram": 0, "context_length": info.context_length}
            listed.append(_listed(model) | more)
        await _respond(exchange, {"models": listed})

    async def version(self, exchange: Exchange, _: str | None = None) -> None:
        """Return Onward's version."""
        await _respond(exchange, {"version": onward.__version__})

    def _served_name(self, name: str) -> str:
        """Return a model's name without the tag that Ollama's clients add."""
        short = name.removesuffix(LATEST)
        names = {model.id for model in self._services.backend.models()}
        return short if name not in names and short in names else name


def _request(checked: Object, model: str) -> CompletionRequest:
    fields = request_fields(checked, "model", "prompt", "logprobs")
    if fields.get("seed") == -1:
        del fields["seed"]
    limit = checked["num_predict"]
    return CompletionRequest(
        model=model,
        prompt=checked.get("prompt") or "",
        max_tokens=UNLIMITED_TOKENS if limit < 0 else limit,
        fill_context=True,
        logprobs=checked["top_logprobs"] if checked["logprobs"] else None,
        **fields,
    )


def _listed(model: ListedModel) -> Object:
    """Return what lists say of a model. Its size is not known; the digest is that of its name."""
    digest = hashlib.sha256(model.id.encode()).hexdigest()
    return {"name": model.id, "model": model.id, "size": 0, "digest": digest, "details": _details()}


def _details(context_length: int = 0) -> Object:
    details: Object = {
        "parent_model": "",
        "format": "",
        "family": ARCHITECTURE,
        "families": [ARCHITECTURE],
        "parameter_size": "",
        "quantization_level": "",
    }
    return details | ({"context_length": context_length} if context_length else {})


def _modified(model: ListedModel) -> str:
    return datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")


async def _respond(exchange: Exchange, value: Object) -> None:
    await exchange.respond(200, msgspec.json.encode(value), "application/json; charset=utf-8")
