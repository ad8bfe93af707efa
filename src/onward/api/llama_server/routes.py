"""/completion, /infill, /props and /slots of llama.cpp's server."""

from __future__ import annotations

from typing import Any

import onward
from onward.api.decoder import UNLIMITED_TOKENS, request_fields
from onward.api.llama_server.fields import COMPLETION, INFILL, UNLIMITED, check_llama_request
from onward.api.llama_server.reply import ERRORS, LlamaOptions, LlamaReply
from onward.api.parameter import FieldTable
from onward.api.reply import Stopwatch
from onward.api.routes import EVENTS, JSON, JSON_UTF8, Exchange, Route, Services, respond_json, with_words
from onward.completions.request import CompletionRequest, InfillContext
from onward.errors import InvalidRequest, Overloaded

_SHOWN = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "ignore_eos", "stream")


async def completion(services: Services, exchange: Exchange) -> None:
    """Complete a prompt."""
    await _complete(services, exchange, COMPLETION)


async def infill(services: Services, exchange: Exchange) -> None:
    """Complete what is between two texts."""
    await _complete(services, exchange, INFILL)


async def _complete(services: Services, exchange: Exchange, rows: FieldTable) -> None:
    stopwatch = Stopwatch()
    profile = services.profile
    checked = await services.decode(exchange, lambda fields: check_llama_request(fields, rows, profile))
    checked["model"] = _name(services, checked.get("model"))
    options = _options(checked)
    request = _infill_request(checked, options) if rows is INFILL else _completion_request(checked, options)
    prompt = checked.get("prompt") or ""

    def settings(model: str) -> dict[str, Any]:
        return {"generation_settings": {"model": model, **_settings(request, options)}, "prompt": prompt}

    reply = LlamaReply(request, options, stopwatch, settings)
    await services.complete(exchange, request, reply)


async def props(services: Services, exchange: Exchange) -> None:
    """Describe the server, and the first model or that of `?model=`."""
    model = services.model(_name(services, exchange.query("model")))
    info = await services.backend.tokenizer_info(model.id)
    checked = check_llama_request({"prompt": ""}, COMPLETION, services.profile)
    options = _options(checked)
    default: dict[str, object] = {
        "id": 0,
        "n_ctx": info.context_length,
        "is_processing": False,
        "params": _settings(_completion_request(checked, options), options),
    }
    answer: dict[str, object] = {
        "default_generation_settings": default,
        "total_slots": services.load(model).max_rows,
        "model_alias": model.id,
        "model_path": model.id,
        "modalities": {"vision": False, "audio": False},
        "chat_template": info.chat_template,
        "bos_token": info.bos_token or "",
        "eos_token": info.eos_token or "",
        "build_info": f"onward {onward.__version__}",
        "is_sleeping": False,
    }
    await respond_json(exchange, answer, media=JSON_UTF8)


async def slots(services: Services, exchange: Exchange) -> None:
    """List the rows of the batch of the first model, or of that of `?model=`. Raises Overloaded where all are busy
    and `?fail_on_no_slot=1`."""
    model = services.model(_name(services, exchange.query("model")))
    load = services.load(model)
    if exchange.query("fail_on_no_slot") and load.num_running >= load.max_rows:
        raise Overloaded("no slot available")
    info = await services.backend.tokenizer_info(model.id)
    listed = [
        {"id": slot, "n_ctx": info.context_length, "is_processing": slot < load.num_running}
        for slot in range(load.max_rows)
    ]
    await respond_json(exchange, listed, media=JSON_UTF8)


def _name(services: Services, name: str | None) -> str | None:
    """Return the name to look a model up by, None for the first one. Where one model is served, every name
    is its name, as in llama.cpp's server: llama.vscode sends that of a chat model of another service."""
    return None if len(services.backend.load()) == 1 else name


def _options(checked: dict[str, Any]) -> LlamaOptions:
    return LlamaOptions(
        num_tokens=checked["n_predict"],
        min_indent=checked["n_indent"],
        max_seconds=max(0, checked["t_max_predict_ms"]) / 1000,
        num_probs=checked["n_probs"],
        returns_tokens=checked["return_tokens"],
        times_every_token=checked["timings_per_token"],
        fields=checked.get("response_fields") or (),
    )


def _completion_request(checked: dict[str, Any], options: LlamaOptions) -> CompletionRequest:
    request = _request(checked, options, prompt=checked["prompt"])
    if len(request.prompts) > 1:
        raise InvalidRequest(
            "Unsupported value: 'prompt' has several prompts. Send one request for each, or all of them to "
            "/v1/completions.",
            param="prompt",
        )
    return request


def _infill_request(checked: dict[str, Any], options: LlamaOptions) -> CompletionRequest:
    infill = InfillContext(checked.get("input_extra") or (), checked["prompt"] or "")
    return _request(
        checked, options, prompt=checked["input_prefix"] or "", suffix=checked["input_suffix"] or None, infill=infill
    )


def _request(checked: dict[str, Any], options: LlamaOptions, **own: Any) -> CompletionRequest:
    """Return the request. Stop strings are part of the text, so that their tokens are counted; the reply cuts them."""
    return CompletionRequest(
        **request_fields(checked, "prompt"),
        **own,
        max_tokens=UNLIMITED_TOKENS if options.num_tokens == UNLIMITED else options.num_tokens,
        fill_context=True,
        logprobs=options.num_probs or None,
        include_stop_str_in_output=True,
    )


def _settings(request: CompletionRequest, options: LlamaOptions) -> dict[str, object]:
    """Return the settings that act, by llama.cpp's names."""
    shown: dict[str, object] = {name: getattr(request, name) for name in _SHOWN}
    return shown | {
        "seed": 2**32 - 1 if request.seed is None else request.seed,
        "repeat_penalty": request.repetition_penalty,
        "stop": list(request.stop),
        "max_tokens": options.num_tokens,
        "n_predict": options.num_tokens,
        "n_probs": options.num_probs,
        "timings_per_token": options.times_every_token,
    }


_TIMINGS_EXAMPLE: dict[str, Any] = {
    "cache_n": 0,
    "prompt_n": 1,
    "prompt_ms": 15.2,
    "predicted_n": 3,
    "predicted_ms": 9.1,
}

_EXAMPLE: dict[str, Any] = {
    "index": 0,
    "content": " upon a time",
    "stop": True,
    "model": "storyteller",
    "tokens_predicted": 3,
    "tokens_evaluated": 1,
    "prompt": "Once",
    "truncated": False,
    "stop_type": "limit",
    "stopping_word": "",
    "timings": _TIMINGS_EXAMPLE,
}

_STREAM_EXAMPLE = 'data: {"index":0,"content":" upon","stop":false}\n\ndata: {"index":0,"content":"","stop":true}\n\n'

ROUTES = with_words(
    ERRORS,
    Route(
        "POST",
        "/completion",
        completion,
        "llamaCompletion",
        "Continue a prompt.",
        body=COMPLETION,
        stream=EVENTS,
        example={JSON: _EXAMPLE, EVENTS: _STREAM_EXAMPLE},
    ),
    Route(
        "POST",
        "/infill",
        infill,
        "llamaInfill",
        "Complete what is between two texts.",
        body=INFILL,
        stream=EVENTS,
        example={JSON: _EXAMPLE, EVENTS: _STREAM_EXAMPLE},
    ),
    Route(
        "GET",
        "/props",
        props,
        "llamaProps",
        "Describe the server and a model.",
        example={
            JSON: {"default_generation_settings": {"n_ctx": 1024}, "total_slots": 64, "model_alias": "storyteller"}
        },
    ),
    Route(
        "GET",
        "/slots",
        slots,
        "llamaSlots",
        "List the rows of the batch.",
        example={JSON: [{"id": 0, "n_ctx": 1024, "is_processing": False}]},
    ),
)
