"""Example answers of OpenAI's API and of this server's routes."""

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
RESUMED = f"id: 2\n{_CHUNK}id: 3\ndata: [DONE]\n\n"

DELETED: Node = {"id": _COMPLETION_ID, "object": "text_completion.deleted", "deleted": True}
MODEL: Node = {"id": "storyteller", "object": "model", "created": _CREATED, "owned_by": "onward"}
ENGINE: Node = {"id": "storyteller", "object": "engine", "owner": "onward", "ready": True, "created": _CREATED}
TOKENS: Node = {"count": 2, "max_model_len": 1024, "tokens": [788, 617], "token_strs": None}
TOKENIZER: Node = {
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
METRICS = 'onward_requests_total{model="storyteller",status="200"} 1.0\n'
HEALTH: Node = {"status": "ready", "detail": "", "models": {"storyteller": {"status": "ready", "detail": ""}}}
