"""The JSON Schemas of responses, generated from the response types, with the descriptions of their fields."""

from __future__ import annotations

from typing import Any

import msgspec

from onward.api.openai.models import Model, ModelList
from onward.api.openai.response import Chunk, Completion

Schema = dict[str, Any]

DESCRIPTIONS: dict[str, dict[str, str]] = {
    "Completion": {
        "": "A complete completion.",
        "id": "The id of the completion.",
        "object": "Always `text_completion`.",
        "created": "When the completion was created, in Unix seconds.",
        "model": "The id of the model, with aliases resolved.",
        "system_fingerprint": "Changes exactly when the same request and seed may have a different result.",
        "choices": "The choices, prompt by prompt: sample j of prompt i has index i × n + j.",
        "usage": "The token counts of the request.",
    },
    "Chunk": {
        "": "One event of a stream, with a part of one choice.",
        "id": "The id of the completion, the same in all chunks.",
        "object": "Always `text_completion`.",
        "created": "When the completion was created, in Unix seconds.",
        "model": "The id of the model, with aliases resolved.",
        "system_fingerprint": "Changes exactly when the same request and seed may have a different result.",
        "choices": "One partial choice; empty in the last chunk of a stream with `include_usage`.",
        "usage": "Only with `include_usage`: null, except for the token counts in the last chunk.",
        "obfuscation": "Only with `include_obfuscation`: random padding.",
    },
    "Choice": {
        "": "One generated text, complete or in part.",
        "text": "The generated text, with `echo` after the prompt.",
        "index": "The number of the choice, from 0.",
        "logprobs": "Log probabilities, if the request has `logprobs`.",
        "finish_reason": "Why the text ended: `stop` (an end token or a stop string), `length` (max_tokens), or "
        "`content_filter`. Null in all chunks of a choice but the last.",
        "token_ids": "Only with `return_token_ids`: the generated tokens, with those that ended the text.",
        "prompt_token_ids": "Only with `return_token_ids`, in a stream in a choice's first chunk: the prompt's tokens.",
        "prompt_logprobs": "Only with `prompt_logprobs`: an entry per token of the model's whole prompt, as in "
        "`prompt_token_ids`; null for the first one. By token id: the prompt's token, then the most likely ones.",
    },
    "PromptLogprob": {
        "": "A token in a place of the prompt.",
        "logprob": "The natural logarithm of its probability there; -9999 for none.",
        "rank": "Its place among all tokens there, from 1 for the most likely one; of equally likely ones, the lowest "
        "id comes first.",
        "decoded_token": "Its text, as in `tokens` of `logprobs`.",
    },
    "Logprobs": {
        "": "Four arrays of equal length, with one entry per token.",
        "tokens": "The text of each token. Bytes that are not valid UTF-8 on their own are written `bytes:\\xe2\\x80`.",
        "token_logprobs": "The natural logarithm of each token's probability; null for an echoed prompt's first token.",
        "top_logprobs": "The sampled token and the most likely ones, with their log probabilities; null for "
        "`logprobs` 0 and for the first token of an echoed prompt.",
        "text_offset": "The start of each token, in Unicode code points from the start of prompt and completion.",
    },
    "Usage": {
        "": "Token counts. Every prompt counts once, and all candidates count; end and stop tokens do not.",
        "prompt_tokens": "Tokens of all prompts.",
        "completion_tokens": "Tokens generated for all candidates.",
        "total_tokens": "The sum of both.",
        "prompt_tokens_details": "Details of the prompts' tokens.",
        "completion_tokens_details": "Details of the generated tokens.",
    },
    "PromptTokensDetails": {
        "cached_tokens": "Prompt tokens that were found in the prefix cache.",
        "audio_tokens": "Always 0: prompts are text.",
        "text_tokens": "All tokens of the prompts.",
        "image_tokens": "Always 0: prompts are text.",
        "cache_write_tokens": "Prompt tokens that this request added to the prefix cache. Left out where another "
        "server computes the model, which does not say.",
    },
    "CompletionTokensDetails": {
        "reasoning_tokens": "Tokens between a reasoning model's markers, which are part of the text.",
        "audio_tokens": "Always 0: completions are text.",
        "text_tokens": "All generated tokens.",
        "accepted_prediction_tokens": "Tokens of the completion that were drafted from `prediction`.",
        "rejected_prediction_tokens": "Tokens drafted from `prediction` that the model did not generate. They are not "
        "part of `completion_tokens`.",
    },
    "Model": {
        "": "A model name that requests can use.",
        "id": "The value for `model`.",
        "created": "Creation time in Unix seconds.",
        "owned_by": "The owner of the model.",
    },
    "ModelList": {"": "All model names."},
}

OPTIONAL = ("token_ids", "prompt_token_ids", "prompt_logprobs", "cache_write_tokens")
"""Fields that only requests which ask for them get, or that not every engine knows; else, only chunks omit fields."""


def response_schemas(ref_template: str) -> dict[str, Schema]:
    """Return the schemas of response types by name. `ref_template` is msgspec's, with `{name}`."""
    _, schemas = msgspec.json.schema_components((Completion, Chunk, Model, ModelList), ref_template=ref_template)
    for name, schema in schemas.items():
        _describe(schema, DESCRIPTIONS[name])
        if name != "Chunk":
            schema["required"] = [field for field in schema["properties"] if field not in OPTIONAL]
    return schemas


def _describe(schema: Schema, descriptions: dict[str, str]) -> None:
    """Replace the descriptions that msgspec took from docstrings. Modifies `schema`."""
    schema.pop("description", None)
    if "" in descriptions:
        schema["description"] = descriptions[""]
    for name, field in schema["properties"].items():
        field.pop("default", None)
        if name in descriptions:
            schema["properties"][name] = {"description": descriptions[name], **field}


def completion_schema() -> Schema:
    """Return the document at /openai/schemas/Completion.json: a Completion as returned by /openai/v1/completions."""
    definitions = response_schemas("#/$defs/{name}")
    names = ("Choice", "Logprobs", "PromptLogprob", "Usage", "PromptTokensDetails", "CompletionTokensDetails")
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
        "$defs": {name: definitions[name] for name in names},
    }


def error_schema() -> Schema:
    """Return the schema of error responses (behaviour §11)."""
    nullable = {"type": ["string", "null"]}
    return {
        "title": "Error",
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": {"description": "What is wrong, for people.", "type": "string"},
                    "type": {"description": "The category of the error.", "type": "string"},
                    "param": {"description": "The invalid request field.", **nullable},
                    "code": {"description": "What is wrong, for programs.", **nullable},
                },
                "required": ["message", "type", "param", "code"],
            }
        },
        "required": ["error"],
    }
