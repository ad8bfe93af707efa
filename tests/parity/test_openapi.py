"""/openapi.json against an independent validator."""

from __future__ import annotations

import json

import jsonschema  # type: ignore[import-untyped]
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from .servers import Servers


@pytest.mark.slow
def test_the_document_is_valid_openapi_3_1(servers: Servers) -> None:
    document = servers["default"].send("GET", "/openapi.json").json
    assert [str(error) for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_every_operation_of_the_document_answers_as_it_says(servers: Servers) -> None:
    server = servers["default"]
    for path, operations in server.send("GET", "/openapi.json").json["paths"].items():
        for method in {"get", "post"} & set(operations):
            operation = operations[method]
            answer = server.send(method.upper(), path.replace("{id}", "toy"))
            documented = {str(answer.status), "default"} & set(operation["responses"])
            assert documented, (method, path, answer.status)


def test_the_tokenizer_routes_reject_unknown_fields_as_their_schemas_do(servers: Servers) -> None:
    server = servers["lenient"]
    schemas = server.send("GET", "/openapi.json").json["components"]["schemas"]
    for path, name, fields in (
        ("/tokenize", "TokenizeRequest", {"prompt": "a"}),
        ("/detokenize", "DetokenizeRequest", {"tokens": [97]}),
    ):
        for body, is_valid in ((fields, True), (fields | {"foo": 1}, False), ({}, False)):
            assert jsonschema.Draft202012Validator(schemas[name]).is_valid(body) == is_valid
            status = server.send("POST", path, json.dumps(body).encode()).status
            assert status == (200 if is_valid else 400), (path, body)


def test_the_examples_of_the_document_are_served(servers: Servers) -> None:
    server = servers["lenient"]
    document = server.send("GET", "/openapi.json").json
    content = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]
    examples = [example["value"] for example in content["examples"].values()]
    assert examples
    for example in examples:
        assert server.ask(**example).status == 200, example
