"""The JSON Schemas of the answers, made from the wire types; the meanings of their fields are written here."""

from __future__ import annotations

from typing import Any

import msgspec

from onward.protocol.models import Model, ModelList
from onward.protocol.response import Chunk, Completion

Schema = dict[str, Any]

DESCRIPTIONS: dict[str, dict[str, str]] = {
    "Completion": {
        "": "A whole completion.",
        "id": "Names this completion; all chunks of a stream share it.",
        "object": "Always `text_completion`.",
        "created": "When it was made, in Unix seconds.",
        "model": "The model that wrote it, aliases resolved.",
        "system_fingerprint": "Changes exactly when the same request and seed may give other results.",
        "choices": "The choices, prompt by prompt: sample j of prompt i has index i × n + j.",
        "usage": "The tokens that the request used.",
    },
    "Chunk": {
        "": "One event of a stream: one part of one choice.",
        "id": "Names the completion, the same in all its chunks.",
        "object": "Always `text_completion`.",
        "created": "When the completion was begun, in Unix seconds.",
        "model": "The model that writes it, aliases resolved.",
        "system_fingerprint": "Changes exactly when the same request and seed may give other results.",
        "choices": "One partial choice; none in the chunk that ends a stream with `include_usage`.",
        "usage": "Only with `include_usage`: null, and the count in the last chunk.",
        "obfuscation": "Only with `include_obfuscation`: random padding.",
    },
    "Choice": {
        "": "One text, whole or in part.",
        "text": "What the model wrote, after the prompt itself where `echo` asked for it.",
        "index": "Which choice this is, from 0.",
        "logprobs": "Log probabilities, where `logprobs` asked for them.",
        "finish_reason": "Why the text ended: `stop` (the model's end, or a stop string), `length` (max_tokens), "
        "`content_filter`. Null in chunks before the last of a choice.",
    },
    "Logprobs": {
        "": "Four arrays of equal length, one entry for each token.",
        "tokens": "Each token's text. Bytes that are no text of their own are spelled `bytes:\\xe2\\x80`.",
        "token_logprobs": "Natural logarithm of each token's probability; null for the first of an echoed prompt.",
        "top_logprobs": "The most likely tokens and the drawn one, with their log probabilities; null for "
        "`logprobs` 0 and for the first token of an echoed prompt.",
        "text_offset": "Where each token begins, in Unicode code points from the start of prompt and completion.",
    },
    "Usage": {
        "": "Token counts. Every prompt counts once, every candidate whole; end and stop tokens do not count.",
        "prompt_tokens": "Tokens of all prompts.",
        "completion_tokens": "Tokens generated for all candidates.",
        "total_tokens": "Both together.",
        "prompt_tokens_details": "How the prompt's tokens came about.",
        "completion_tokens_details": "How the completion's tokens came about.",
    },
    "PromptTokensDetails": {
        "cached_tokens": "Prompt tokens that were not computed again.",
        "audio_tokens": "Always 0: prompts are text.",
    },
    "CompletionTokensDetails": {
        "reasoning_tokens": "Always 0: all tokens are in the text.",
        "audio_tokens": "Always 0: completions are text.",
        "accepted_prediction_tokens": "Tokens of the completion that were drafted from `prediction`.",
        "rejected_prediction_tokens": "Tokens drafted from `prediction` that the model did not write. They are no "
        "part of `completion_tokens`.",
    },
    "Model": {
        "": "A name that can be asked for.",
        "id": "The name to send as `model`.",
        "created": "In Unix seconds.",
        "owned_by": "Who made the model available.",
    },
    "ModelList": {"": "All names that can be asked for."},
}


def response_schemas(ref_template: str) -> dict[str, Schema]:
    """Every answer's schema by its type's name; `ref_template` is msgspec's, with `{name}`."""
    _, schemas = msgspec.json.schema_components((Completion, Chunk, Model, ModelList), ref_template=ref_template)
    for name, schema in schemas.items():
        _describe(schema, DESCRIPTIONS[name])
        if name != "Chunk":
            schema["required"] = list(schema["properties"])  # only a chunk leaves fields out
    return schemas


def _describe(schema: Schema, words: dict[str, str]) -> None:
    """Replace what msgspec took from docstrings, which speak to programmers. Changes `schema`."""
    schema.pop("description", None)
    if "" in words:
        schema["description"] = words[""]
    for name, field in schema["properties"].items():
        field.pop("default", None)
        if name in words:
            schema["properties"][name] = {"description": words[name], **field}


def completion_schema() -> Schema:
    """The document at /openai/schemas/Completion.json: a Completion as /openai/v1/completions answers it."""
    definitions = response_schemas("#/$defs/{name}")
    needed = ("Choice", "Logprobs", "Usage", "PromptTokensDetails", "CompletionTokensDetails")
    completion = definitions["Completion"]
    link = {
        "description": "The URL of this schema, on paths under /openai.",
        "type": "string",
        "format": "uri",
        "readOnly": True,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **completion,
        "properties": {"$schema": link, **completion["properties"]},
        "$defs": {name: definitions[name] for name in needed},
    }


def error_schema() -> Schema:
    """The envelope of every error answer (spec/completions §11)."""
    nullable = {"type": ["string", "null"]}
    return {
        "title": "Error",
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": {"description": "What is wrong, for a person.", "type": "string"},
                    "type": {"description": "The family of the error.", "type": "string"},
                    "param": {"description": "The request field at fault.", **nullable},
                    "code": {"description": "What is wrong, for a program.", **nullable},
                },
                "required": ["message", "type", "param", "code"],
            }
        },
        "required": ["error"],
    }
