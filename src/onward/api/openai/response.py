"""The objects of responses, and their JSON Schemas with a description of each field. A completion and a streamed chunk
share the type Choice, complete or partial."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "content_filter"]


class WireObject(msgspec.Struct):
    """Base class: attribute access in Python, the API's JSON on the wire, and the conversions of OpenAI's SDK."""

    def to_dict(self) -> dict[str, Any]:
        """Return the object as dicts and lists, as on the wire."""
        plain: dict[str, Any] = msgspec.to_builtins(self, str_keys=True)
        return plain

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the object as JSON; with `indent` None, on one line."""
        encoded = msgspec.json.encode(self)
        return (encoded if indent is None else msgspec.json.format(encoded, indent=indent)).decode()

    model_dump = to_dict

    def model_dump_json(self, *, indent: int | None = None) -> str:
        """Return the object as JSON; with `indent` None, on one line."""
        return self.to_json(indent=indent)


def always(value: Any) -> Any:
    """Return a default that is written, too, in an object that leaves out others (`omit_defaults`)."""
    return msgspec.field(default_factory=lambda: value)


class Logprobs(WireObject, kw_only=True):
    """Four lists of equal length, with one entry per token (behaviour §2.7).

    `text_offset` is in Unicode code points from the start of prompt and completion together. For the first token of an
    echoed prompt, `token_logprobs` and `top_logprobs` contain None. `top_logprobs` is None for logprobs=0.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(WireObject, gc=False):
    """One candidate for a position of the prompt: its log probability, its rank among all tokens there, from 1, and its
    text as in `Logprobs.tokens`."""

    logprob: float
    rank: int
    decoded_token: str


class Choice(WireObject, kw_only=True, omit_defaults=True):
    """One choice, complete, or the part of it in one chunk. What was not asked for is None, and not on the wire."""

    text: str
    index: int
    logprobs: Logprobs | None = always(None)
    finish_reason: FinishReason | None = always(None)
    token_ids: list[int] | None = None
    """With `return_token_ids`: the generated tokens of this choice or part, with those that ended it."""
    prompt_token_ids: list[int] | None = None
    """With `return_token_ids`, in the first part of a choice: the tokens that the model was prompted with."""
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | None = None
    """With `prompt_logprobs`, in the first part of a choice: an entry per token that the model was prompted with, by
    token id the token itself, then the most likely ones; None for the first."""


class PromptTokensDetails(WireObject, kw_only=True, omit_defaults=True):
    """Details of `Usage.prompt_tokens`. `cached_tokens` were found in the prefix cache, `cache_write_tokens` added to
    it (None, and not on the wire: another server computes the model, and does not say)."""

    cached_tokens: int = always(0)
    audio_tokens: int = always(0)
    text_tokens: int = always(0)
    image_tokens: int = always(0)
    cache_write_tokens: int | None = None


class CompletionTokensDetails(WireObject, kw_only=True):
    """Details of `Usage.completion_tokens`. Rejected prediction tokens are not part of it."""

    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0
    text_tokens: int = 0


class Usage(WireObject, kw_only=True):
    """Token counts: each prompt once, every generated candidate; end and stop tokens do not count."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class Completion(WireObject, kw_only=True):
    """The response to a request without `stream`. The order of fields is that of the wire."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None = None
    choices: list[Choice]
    usage: Usage


class Chunk(WireObject, kw_only=True, omit_defaults=True):
    """One event of a stream. What is None, or UNSET, is not on the wire (behaviour §4)."""

    id: str
    object: str
    created: int
    choices: list[Choice]
    model: str
    system_fingerprint: str | None = None
    wire_usage: Usage | msgspec.UnsetType | None = msgspec.field(default=msgspec.UNSET, name="usage")
    obfuscation: str | None = None

    @property
    def usage(self) -> Usage | None:
        """The token counts, None where there are none, as in OpenAI's SDK: programs ask whether it `is not None`."""
        return self.wire_usage or None


class Model(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A model name that requests can use (behaviour §7). `created` is in Unix seconds. `parent` is vLLM's: the model
    that an adapter changes; None, and not on the wire, for others."""

    id: str
    object: Literal["model"] = always("model")
    created: int
    owned_by: str
    parent: str | None = None


class ModelList(msgspec.Struct, kw_only=True):
    """All model names."""

    object: Literal["list"] = "list"
    data: list[Model]


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
        "": "A token at a position of the prompt.",
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
        "parent": "The model that this one, a LoRA adapter, changes. Left out for other models.",
    },
    "ModelList": {"": "All model names."},
}

TYPES: dict[str, type[msgspec.Struct]] = {
    kind.__name__: kind
    for kind in (
        Completion, Chunk, Choice, Logprobs, PromptLogprob, Usage, PromptTokensDetails, CompletionTokensDetails, Model,
        ModelList,
    )
}  # fmt: skip


COMPONENTS = "#/components/schemas/{name}"
"""Where schemas of an OpenAPI document refer to each other."""


def response_schemas(ref_template: str = COMPONENTS) -> dict[str, Schema]:
    """Return the schemas of response types by name. `ref_template` is msgspec's, with `{name}`."""
    _, schemas = msgspec.json.schema_components((Completion, Chunk, Model, ModelList), ref_template=ref_template)
    for name, schema in schemas.items():
        fields = schema["properties"]
        left_out = _left_out(TYPES[name])
        for field in left_out:
            fields[field] = fields[field]["anyOf"][0]  # without null
        describe(schema, DESCRIPTIONS[name])
        if name != "Chunk":
            schema["required"] = [field for field in fields if field not in left_out]
    return schemas


def _left_out(kind: type[msgspec.Struct]) -> list[str]:
    """Return the fields of a type that are not on the wire where they are None."""
    if not kind.__struct_config__.omit_defaults:
        return []
    return [field.encode_name for field in msgspec.structs.fields(kind) if field.default is None]


def describe(schema: Schema, descriptions: dict[str, str]) -> None:
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
