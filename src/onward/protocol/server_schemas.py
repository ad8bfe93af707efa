"""The schemas of what is about the server itself, not about completions: tokens, engines, health."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer"}
_LITERAL: Schema = {"type": ["string", "null"]}
_TOKENS: Schema = {"type": "array", "items": {"type": "integer"}}
_MODEL: Schema = _LITERAL | {"description": "A model id or alias; the first model where it is left out."}


def server_schemas() -> dict[str, Schema]:
    """Every such schema by its name. Leaves are shared: copy before changing."""
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
        "Health": _record({"status": {"enum": ["ready", "draining", "dead"]}, "detail": _TEXT}),
        "JsonObject": {"type": "object"},
    }


def _token_schemas() -> dict[str, Schema]:
    """The tokenizer's routes, in vLLM's shapes (spec/applications C1)."""
    return {
        "TokenizeRequest": _record(
            {
                "model": _MODEL,
                "prompt": _TEXT,
                "add_special_tokens": _switch(True, "Let the tokenizer add its start token."),
                "return_token_strs": _switch(False, "Give the tokens' texts as well."),
            },
            required=["prompt"],
        ),
        "TokenizeResponse": _record(
            {
                "count": _COUNT,
                "max_model_len": _COUNT,
                "tokens": _TOKENS,
                "token_strs": {"type": ["array", "null"], "items": _TEXT},
            }
        ),
        "DetokenizeRequest": _record({"model": _MODEL, "tokens": _TOKENS}, required=["tokens"]),
        "DetokenizeResponse": _record({"prompt": _TEXT}),
        "TokenizerInfo": _record(
            {
                "tokenizer_class": _TEXT,
                "bos_token": _LITERAL,
                "eos_token": _LITERAL,
                "additional_special_tokens": {"type": "array", "items": _TEXT},
                "vocab_size": _COUNT,
                "model_max_length": _COUNT,
                "infill": {"type": "boolean", "description": "Whether the model takes `suffix`."},
            }
        ),
    }


def _record(properties: Schema, *, required: list[str] | None = None) -> Schema:
    """An object whose properties are all required, unless `required` names fewer."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }


def _switch(default: bool, description: str) -> Schema:
    return {"type": ["boolean", "null"], "default": default, "description": description}
