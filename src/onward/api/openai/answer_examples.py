"""An example answer of each route, for OpenAPI and the reference page."""

from __future__ import annotations

from typing import Any

Node = dict[str, Any]

_CREATED = 1755097557
_COMPLETION_ID = "cmpl-C47L3RG6ICY37W3Q0flVHr4BPTPMS"
COMPLETION: Node = {
    "id": _COMPLETION_ID,
    "object": "text_completion",
    "created": _CREATED,
    "model": "storyteller",
    "system_fingerprint": "fp_2f1a9c0b7d",
    "choices": [
        {"text": " there was a fox", "index": 0, "logprobs": None, "finish_reason": "length"},
    ],
    "usage": {
        "prompt_tokens": 4,
        "completion_tokens": 4,
        "total_tokens": 8,
        "prompt_tokens_details": {
            "cached_tokens": 0,
            "audio_tokens": 0,
            "text_tokens": 4,
            "image_tokens": 0,
            "cache_write_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            "text_tokens": 4,
        },
    },
}
LINKED: Node = {"$schema": "http://127.0.0.1:8000/openai/schemas/Completion.json", **COMPLETION}
_CHUNK = (
    f'data: {{"id":"{_COMPLETION_ID}","object":"text_completion","created":{_CREATED},'
    '"choices":[{"text":" there","index":0,"logprobs":null,"finish_reason":null}],"model":"storyteller"}\n\n'
)
STREAM = _CHUNK + "data: [DONE]\n\n"
_RESUMED = f"id: 2\n{_CHUNK}id: 3\ndata: [DONE]\n\n"

_DELETED: Node = {"id": _COMPLETION_ID, "object": "text_completion.deleted", "deleted": True}
_MODEL: Node = {"id": "storyteller", "object": "model", "created": _CREATED, "owned_by": "onward"}
_ENGINE: Node = {"id": "storyteller", "object": "engine", "owner": "onward", "ready": True, "created": _CREATED}
_TOKENS: Node = {"count": 2, "max_model_len": 1024, "tokens": [788, 617], "token_strs": None}
_TOKENIZER: Node = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": "<|endoftext|>",
    "bos_token_id": 0,
    "eos_token": "<|endoftext|>",
    "eos_token_id": 0,
    "add_bos_token": False,
    "additional_special_tokens": ["<|endoftext|>"],
    "vocab_size": 8192,
    "model_max_length": 1024,
    "infill": True,
}
_TIMINGS: Node = {"cache_n": 0, "prompt_n": 1, "prompt_ms": 15.2, "predicted_n": 3, "predicted_ms": 9.1}
_LLAMA: Node = {
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
    "timings": _TIMINGS,
}
_LLAMA_STREAM = 'data: {"index":0,"content":" upon","stop":false}\n\ndata: {"index":0,"content":"","stop":true}\n\n'
_OLLAMA: Node = {
    "model": "storyteller",
    "created_at": "2026-11-24T00:27:24.430857Z",
    "response": " upon a time",
    "done": True,
    "done_reason": "length",
    "prompt_eval_count": 1,
    "eval_count": 3,
}
_OLLAMA_LINES = (
    '{"model":"storyteller","response":" upon","done":false}\n{"model":"storyteller","response":"","done":true}\n'
)
_OLLAMA_MODEL: Node = {"name": "storyteller", "model": "storyteller", "details": {"family": "onward"}}
_FIM: Node = {
    "id": _COMPLETION_ID,
    "object": "chat.completion",
    "created": _CREATED,
    "model": "storyteller",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": " a time,"}, "finish_reason": "length"},
    ],
    "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
}
_FIM_STREAM = (
    f'data: {{"id":"{_COMPLETION_ID}","object":"chat.completion.chunk","model":"storyteller","choices":'
    '[{"index":0,"delta":{"content":" a"},"finish_reason":null}]}\n\ndata: [DONE]\n\n'
)
_TGI_STREAM = (
    'data: {"index":1,"token":{"id":617,"text":" upon","logprob":-0.1,"special":false},"generated_text":null}\n\n'
)
_METRICS = 'onward_requests_total{model="storyteller",status="200"} 1.0\n'
_HEALTH: Node = {"status": "ready", "detail": "", "models": {"storyteller": {"status": "ready", "detail": ""}}}

JSON, EVENTS, LINES = "application/json", "text/event-stream", "application/x-ndjson"
ANSWERS: dict[str, dict[str, object]] = {
    "post /v1/completions": {JSON: COMPLETION, EVENTS: STREAM},
    "post /openai/v1/completions": {JSON: LINKED, EVENTS: STREAM},
    "post /v1/engines/{id}/completions": {JSON: COMPLETION, EVENTS: STREAM},
    "post /m/{id}/v1/completions": {JSON: COMPLETION, EVENTS: STREAM},
    "get /v1/completions/{id}": {JSON: COMPLETION, EVENTS: _RESUMED},
    "get /openai/v1/completions/{id}": {JSON: LINKED, EVENTS: _RESUMED},
    "delete /v1/completions/{id}": {JSON: _DELETED},
    "delete /openai/v1/completions/{id}": {JSON: _DELETED},
    "get /v1/models": {JSON: {"object": "list", "data": [_MODEL]}},
    "get /v1/models/{id}": {JSON: _MODEL},
    "get /openai/v1/models": {JSON: {"object": "list", "data": [_MODEL]}},
    "get /openai/v1/models/{id}": {JSON: _MODEL},
    "get /v1/engines": {JSON: {"object": "list", "data": [_ENGINE]}},
    "get /v1/engines/{id}": {JSON: _ENGINE},
    "post /tokenize": {JSON: _TOKENS},
    "post /m/{id}/tokenize": {JSON: _TOKENS},
    "post /detokenize": {JSON: {"prompt": "Once upon"}},
    "post /m/{id}/detokenize": {JSON: {"prompt": "Once upon"}},
    "get /tokenizer_info": {JSON: _TOKENIZER},
    "get /m/{id}/tokenizer_info": {JSON: _TOKENIZER},
    "get /health": {JSON: _HEALTH},
    "get /live": {JSON: {"status": "live"}},
    "get /metrics": {"text/plain": _METRICS},
    "post /completion": {JSON: _LLAMA, EVENTS: _LLAMA_STREAM},
    "post /infill": {JSON: _LLAMA, EVENTS: _LLAMA_STREAM},
    "get /props": {
        JSON: {"default_generation_settings": {"n_ctx": 1024}, "total_slots": 64, "model_alias": "storyteller"}
    },
    "get /slots": {JSON: [{"id": 0, "n_ctx": 1024, "is_processing": False}]},
    "post /api/generate": {JSON: _OLLAMA, LINES: _OLLAMA_LINES},
    "post /api/show": {JSON: {"details": {"family": "onward"}, "capabilities": ["completion", "insert"]}},
    "get /api/tags": {JSON: {"models": [_OLLAMA_MODEL]}},
    "get /api/ps": {JSON: {"models": [{**_OLLAMA_MODEL, "context_length": 1024}]}},
    "get /api/version": {JSON: {"version": "0.1.0"}},
    "post /v1/fim/completions": {JSON: _FIM, EVENTS: _FIM_STREAM},
    "post /tabby/v1/completions": {JSON: {"id": _COMPLETION_ID, "choices": [{"index": 0, "text": " upon a"}]}},
    "get /tabby/v1/health": {JSON: {"model": "storyteller", "device": "cpu"}},
    "post /generate": {JSON: {"generated_text": " upon a time"}},
    "post /generate_stream": {JSON: {"generated_text": " upon a time"}, EVENTS: _TGI_STREAM},
    "post /": {JSON: [{"generated_text": " upon a time"}], EVENTS: _TGI_STREAM},
    "get /info": {JSON: {"model_id": "storyteller", "max_total_tokens": 1024, "router": "onward", "version": "0.1.0"}},
}
"""Method and path → media type → example. Examples are shared: copy before modifying."""


def add_examples(paths: Node) -> None:
    """Write the examples to the responses of OpenAPI's `paths`, which are modified."""
    for path, operations in paths.items():
        for method, operation in operations.items():
            for kind, example in ANSWERS.get(f"{method} {path}", {}).items():
                media = operation["responses"].get("200", {}).get("content", {}).get(kind)
                if media is not None:
                    media["example"] = example
