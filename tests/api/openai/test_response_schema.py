"""The schemas agree with the decoder and the responses; the OpenAPI document is consistent."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.api.dialects import DIALECTS
from onward.api.openai.encode import chunk_event, encode_completion
from onward.api.openai.errors import error_envelope
from onward.api.openai.parameters import PARAMETERS
from onward.api.openai.response import (
    Choice,
    Chunk,
    Completion,
    CompletionTokensDetails,
    FinishReason,
    Logprobs,
    PromptTokensDetails,
    Usage,
    completion_schema,
    error_schema,
)
from onward.api.openapi import openapi
from onward.api.parameter import Parameter, Profile
from onward.api.refusals import no_model
from onward.api.request_schema import request_schema
from onward.errors import ApiError
from onward.server.app import ROUTES
from tests.api.openai.decoding import decode_request
from tests.examples import UNICODE, examples
from tests.server.fakes import events as parse_events

from .schema_check import is_valid, resolve

DOCUMENT = openapi("1.2.3", ROUTES)
PROFILES: list[Profile] = ["strict", "default", "lenient"]
LOGPROBS = Logprobs(
    tokens=["A", " b", "bytes:\\xe2"],
    token_logprobs=[None, -0.5, -3.0],
    top_logprobs=[None, {" b": -0.5}, {"bytes:\\xe2": -3.0, "c": -1.0}],
    text_offset=[0, 1, 3],
)
SCORED = Logprobs(tokens=["A"], token_logprobs=[-1.0], top_logprobs=None, text_offset=[7])
USAGE = Usage(
    prompt_tokens=1,
    completion_tokens=2,
    total_tokens=3,
    prompt_tokens_details=PromptTokensDetails(cached_tokens=1),
    completion_tokens_details=CompletionTokensDetails(),
)


def completion(choices: list[Choice], fingerprint: str | None = "fp") -> Any:
    whole = Completion(id="cmpl-1", created=1, model="m", system_fingerprint=fingerprint, choices=choices, usage=USAGE)
    return json.loads(encode_completion(whole))


REASONS: list[FinishReason | None] = ["stop", "length", "content_filter", None]
COMPLETIONS = [
    completion([]),
    completion([Choice(text="", index=0)], None),
    *(completion([Choice(text="x", index=0, finish_reason=reason)]) for reason in REASONS),
    completion([Choice(text="A b", index=1, logprobs=LOGPROBS), Choice(text="A", index=0, logprobs=SCORED)]),
    completion([Choice(text="", index=0)]) | {"$schema": "https://h/openai/schemas/Completion.json"},
]


@pytest.mark.parametrize("body", COMPLETIONS, ids=lambda body: json.dumps(body["choices"])[:60])
def test_completions_are_valid(body: object) -> None:
    assert is_valid(body, completion_schema())
    assert is_valid(body, DOCUMENT["components"]["schemas"]["Completion"], DOCUMENT)


def spoil(path: str, value: object) -> Any:
    """Return a completion with one value replaced, or removed if `value` is `...`."""
    body = copy.deepcopy(COMPLETIONS[-2])
    *above, last = path.split(".")
    node: Any = body
    for key in above:
        node = node[int(key) if isinstance(node, list) else key]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return body


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("id", ...), ("id", None), ("object", "completion"), ("object", ...), ("created", 1.5), ("model", None),
        ("choices", None), ("choices", ...), ("usage", None), ("usage", ...), ("usage.completion_tokens", ...),
        ("usage.total_tokens", "3"), ("choices.0.text", None), ("choices.0.index", ...),
        ("choices.0.finish_reason", "eos"), ("choices.0.finish_reason", ...), ("choices.0.logprobs", ...),
        ("choices.0.logprobs", []), ("choices.0.logprobs.tokens", [1]), ("choices.0.logprobs.top_logprobs", [1]),
        ("choices.0.logprobs.token_logprobs", ["x"]), ("choices.0.logprobs.text_offset", [0.5]), ("$schema", 1),
    ],
)  # fmt: skip
def test_an_invalid_completion_is_not_valid(path: str, value: object) -> None:
    assert not is_valid(spoil(path, value), completion_schema())


def test_chunks_are_valid() -> None:
    schema = DOCUMENT["components"]["schemas"]["CompletionChunk"]
    usages: list[Usage | msgspec.UnsetType | None] = [msgspec.UNSET, None, USAGE]
    for usage in usages:
        for choices in ([], [Choice(text="x", index=0, logprobs=LOGPROBS)]):
            chunk = Chunk(id="c", object="text_completion", created=1, choices=choices, model="m", wire_usage=usage)
            for obfuscate in (False, True):
                event = json.loads(chunk_event(chunk, obfuscate=obfuscate).removeprefix(b"data: "))
                assert is_valid(event, schema, DOCUMENT)
    assert not is_valid({"error": {}}, schema, DOCUMENT)


def test_an_error_is_valid() -> None:
    body, _ = error_envelope(no_model())
    assert is_valid(json.loads(body), error_schema())
    assert not is_valid({"error": "words"}, error_schema())
    assert not is_valid({"detail": []}, error_schema())


numbers = st.integers(-3, 130) | st.integers(-(2**65), 2**65) | st.floats(-150, 150)
small = st.none() | st.booleans() | numbers | st.text(UNICODE, max_size=3)
values = st.one_of(
    small,
    st.lists(small, max_size=6),
    st.lists(st.text(UNICODE, max_size=2), max_size=6),
    st.lists(st.integers(0, 9), max_size=3),
    st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=3),
    st.dictionaries(st.integers(0, 99).map(str), numbers, max_size=3),
    st.dictionaries(st.sampled_from(["include_usage", "temperature", "stop", "x"]), small, max_size=2),
)
typed = st.sampled_from(["content", "text"]) | small
texts = st.text(UNICODE, max_size=2)
parts = st.lists(st.fixed_dictionaries({}, optional={"type": typed, "text": texts | small, "x": small}), max_size=2)
predictions = st.fixed_dictionaries(
    {}, optional={"type": typed, "content": texts | parts | small, "text": texts, "x": small}
)
checked = st.sampled_from([row for row in PARAMETERS if row.kind != "duration"])


def decoder_accepts(body: dict[str, Any], profile: Profile) -> bool:
    try:
        decode_request(json.dumps(body).encode(), profile=profile)
    except ApiError:
        return False
    return True


@settings(max_examples=examples(400))
@given(checked, values, st.sampled_from(PROFILES))
def test_the_request_schema_accepts_what_the_decoder_accepts(row: Parameter, value: object, profile: Profile) -> None:
    body: dict[str, Any] = {"model": "m", row.name: value}
    aids: dict[str, dict[str, Any]] = {"min_tokens": {"max_tokens": 2**63 - 1}, "stream_options": {"stream": True}}
    body.update(aids.get(row.name, {}))
    assert is_valid(body, request_schema(profile)) == decoder_accepts(body, profile)


@settings(max_examples=examples(300))
@given(predictions, st.sampled_from(PROFILES))
def test_the_request_schema_accepts_the_predictions_that_the_decoder_accepts(value: object, profile: Profile) -> None:
    body: dict[str, Any] = {"model": "m", "prediction": value}
    assert is_valid(body, request_schema(profile)) == decoder_accepts(body, profile)


@pytest.mark.parametrize("profile", PROFILES)
def test_the_schema_of_each_profile_has_its_rules(profile: Profile) -> None:
    lenient = profile == "lenient"
    assert is_valid({"model": "m", "foo": 1}, request_schema(profile)) == lenient
    assert is_valid({}, request_schema(profile)) == lenient
    assert is_valid({"model": "m", "top_k": 1}, request_schema(profile)) == (profile != "strict")
    assert is_valid({"model": "m", "logprobs": 6}, request_schema(profile)) == (profile != "strict")


def test_the_request_schema_has_help_default_and_example_of_each_parameter() -> None:
    properties = request_schema()["properties"]
    assert set(properties) == {row.name for row in PARAMETERS}
    for row in PARAMETERS:
        assert properties[row.name]["description"] == row.help
        assert properties[row.name]["examples"] == [row.example]
        assert properties[row.name].get("default") == row.default


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a document."""
    if isinstance(node, dict):
        yield node
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes(each)


def test_every_reference_of_the_document_exists() -> None:
    references = [node["$ref"] for node in nodes(DOCUMENT) if "$ref" in node]
    assert len(references) > 50
    for reference in references:
        resolve(reference, DOCUMENT)


def test_every_component_is_used_except_the_chunk_which_the_text_mentions() -> None:
    used = {node["$ref"].rsplit("/", 1)[1] for node in nodes(DOCUMENT) if "$ref" in node}
    assert set(DOCUMENT["components"]["schemas"]) - used == {"CompletionChunk"}


def test_the_document_has_every_route() -> None:
    assert DOCUMENT["openapi"].startswith("3.1") and DOCUMENT["info"]["version"] == "1.2.3"
    assert set(DOCUMENT["paths"]) == {
        "/v1/completions", "/v1/models", "/v1/models/{id}", "/v1/engines/{id}/completions",
        "/v1/engines", "/v1/engines/{id}", "/v1/organization/usage/{id}", "/v1/organization/costs",
        "/v1/admin/models", "/v1/admin/models/{id}", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
        "/v1/files", "/v1/files/{id}", "/v1/files/{id}/content", "/v1/batches", "/v1/batches/{id}",
        "/v1/batches/{id}/cancel",
        "/v1/completions/{id}", "/openai/v1/completions/{id}",
        "/openai/v1/completions", "/openai/v1/models", "/openai/v1/models/{id}",
        "/openai/schemas/Completion.json", "/tokenize", "/detokenize", "/tokenizer_info",
        "/apply-template", "/m/{id}/apply-template",
        "/m/{id}/v1/completions", "/m/{id}/tokenize", "/m/{id}/detokenize", "/m/{id}/tokenizer_info",
        *(route.path for routes in DIALECTS.values() for route in routes),
        "/health", "/live", "/metrics", "/openapi.json", "/docs", "/", "/tokenizer", "/usage",
    }  # fmt: skip


def test_operation_ids_are_unique_and_path_parameters_declared() -> None:
    operations = [node for node in nodes(DOCUMENT["paths"]) if "operationId" in node]
    names = [operation["operationId"] for operation in operations]
    assert len(names) == len(set(names)) >= len(DOCUMENT["paths"])
    for path, item in DOCUMENT["paths"].items():
        declared = [each["name"] for each in item.get("parameters", []) if each["in"] == "path"]
        assert declared == (["id"] if "{id}" in path else [])


def test_the_examples_of_the_document_are_valid() -> None:
    operation = DOCUMENT["paths"]["/v1/completions"]["post"]
    for example in operation["requestBody"]["content"]["application/json"]["examples"].values():
        assert decode_request(json.dumps(example["value"]).encode()).model == "storyteller"
        assert is_valid(example["value"], request_schema())
    content = operation["responses"]["200"]["content"]
    assert is_valid(content["application/json"]["example"], completion_schema())
    *events, done = parse_events(content["text/event-stream"]["example"].encode())
    assert done == "[DONE]"
    for event in events:
        assert is_valid(event, DOCUMENT["components"]["schemas"]["CompletionChunk"], DOCUMENT)


def test_a_linked_completion_requires_its_link() -> None:
    schema = DOCUMENT["components"]["schemas"]["LinkedCompletion"]
    assert is_valid(COMPLETIONS[-1], schema, DOCUMENT)
    assert not is_valid(COMPLETIONS[0], schema, DOCUMENT)


def test_each_document_is_a_new_object_and_json() -> None:
    first = openapi("1", ROUTES)
    first["paths"].clear()
    first["components"]["schemas"]["Completion"].clear()
    assert json.loads(json.dumps(openapi("1.2.3", ROUTES))) == DOCUMENT


def test_every_route_that_completes_describes_the_header_of_the_seed() -> None:
    found = [
        operation
        for operations in openapi("0", ROUTES)["paths"].values()
        for method, operation in operations.items()
        if method == "post" and len(operation["responses"]["200"].get("content", {})) > 1  # whole, and as a stream
    ]
    assert len(found) > 8
    for operation in found:
        assert "onward-seed" in [parameter["name"] for parameter in operation["parameters"]], operation["operationId"]
        assert "onward-seed" in operation["responses"]["200"]["headers"], operation["operationId"]


def test_every_answer_has_an_example_that_its_schema_accepts() -> None:
    document = openapi("0", ROUTES, profile="default")
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if method not in ("get", "post", "delete"):
                continue
            for kind, media in operation["responses"]["200"].get("content", {}).items():
                if kind in ("text/html", "application/schema+json") or path == "/openapi.json":
                    continue
                assert "example" in media, (method, path, kind)
                if "$ref" in media["schema"]:
                    schema = media["schema"] | {"components": document["components"]}
                    jsonschema.Draft202012Validator(schema).validate(media["example"])
