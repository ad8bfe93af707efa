"""Schemas of the routes other than completions and models: tokens, engines, health."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer"}
_LITERAL: Schema = {"type": ["string", "null"]}
_TOKENS: Schema = {"type": "array", "items": {"type": "integer"}}
_MODEL: Schema = _LITERAL | {"description": "A model id or alias; by default the first model."}


def server_schemas() -> dict[str, Schema]:
    """Return the schemas by name. Their leaves are shared: copy before modifying."""
    return {
        **_token_schemas(),
        "Engine": _record(
            {
                "id": _TEXT,
                "object": {"enum": ["engine"]},
                "owner": _TEXT,
                "ready": {"type": "boolean"},
                "created": _COUNT,
            }
        ),
        "EngineList": _record(
            {
                "object": {"enum": ["list"]},
                "data": {"type": "array", "items": {"$ref": "#/components/schemas/Engine"}},
            }
        ),
        "Health": _health(),
        "Live": _record({"status": {"enum": ["live"]}}),
        "JsonObject": {"type": "object"},
    }


def _health() -> Schema:
    """Return the schema of /health. Where there are keys, `models` is shown to requests with one."""
    model = _record({"status": {"enum": ["ready", "recovering", "dead"]}, "detail": _TEXT})
    body = _record({"status": {"enum": ["ready", "recovering", "draining", "dead"]}, "detail": _TEXT})
    body["properties"]["models"] = {"type": "object", "additionalProperties": model}
    return body


def _token_schemas() -> dict[str, Schema]:
    """Return the schemas of the tokenizer routes, which follow vLLM (behaviour §14)."""
    return {
        "TokenizeRequest": _request(
            {
                "model": _MODEL,
                "prompt": _TEXT,
                "add_special_tokens": _switch(True, "Whether the tokenizer adds its start token."),
                "return_token_strs": _switch(False, "Whether to return the tokens' texts as well."),
                "return_token_bytes": _switch(
                    False,
                    "Whether to return the tokens' bytes as well, in hexadecimal: a token may hold a part of a "
                    "character, which its text cannot show.",
                ),
            },
            required=["prompt"],
        ),
        "TokenizeResponse": _token_answer(),
        "DetokenizeRequest": _request({"model": _MODEL, "tokens": _TOKENS}, required=["tokens"]),
        "DetokenizeResponse": _detokenize_answer(),
        "TokenizerInfo": _record(
            {
                "tokenizer_class": _TEXT,
                "bos_token": _LITERAL,
                "bos_token_id": {"type": ["integer", "null"]},
                "eos_token": _LITERAL,
                "eos_token_id": {"type": ["integer", "null"]},
                "add_bos_token": {
                    "type": "boolean",
                    "description": "Whether the model needs the start token: it is added to texts, and prompts of "
                    "token ids should begin with it.",
                },
                "additional_special_tokens": {"type": "array", "items": _TEXT},
                "vocab_size": _COUNT,
                "model_max_length": _COUNT,
                "infill": {"type": "boolean", "description": "Whether the model supports `suffix`."},
            }
        ),
    }


def _token_answer() -> Schema:
    """Return the schema of the answer to /tokenize. `token_bytes` is part of it where it was requested."""
    answer = _record(
        {
            "count": _COUNT,
            "max_model_len": _COUNT,
            "tokens": _TOKENS,
            "token_strs": {"type": ["array", "null"], "items": _TEXT},
        }
    )
    answer["properties"]["token_bytes"] = {"type": "array", "items": _TEXT}
    return answer


def _detokenize_answer() -> Schema:
    """Return the schema of the answer to /detokenize. `content`, the same text, is part of it where the dialect of
    llama-server is served."""
    answer = _record({"prompt": _TEXT})
    answer["properties"]["content"] = _TEXT
    return answer


def _record(properties: Schema) -> Schema:
    """Return the schema of an object with all these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _request(properties: Schema, *, required: list[str]) -> Schema:
    """Return the schema of a request. Other fields are rejected, in every profile."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _switch(default: bool, description: str) -> Schema:
    return {"type": ["boolean", "null"], "default": default, "description": description}
