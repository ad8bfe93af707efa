"""Law 7: schemas, command line flags and the reference page all describe the parameters of the one table."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.parameters import PARAMETERS, TABLES
from onward.api.openapi import openapi
from onward.api.parameter import Parameter, Profile
from onward.cli.commands import completions
from onward.server.app import ROUTES
from tests.tables import each_row

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "parameters.md"
PROFILES: list[Profile] = ["strict", "default", "lenient"]
ROWS = [((row.name,), row) for row in PARAMETERS] + [
    ((row.name, inner.name), inner) for row in PARAMETERS for inner in row.inner
]
"""Every parameter with its path in the request."""
METAVARS = {"string": "TEXT", "integer": "INTEGER", "number": "NUMBER", "boolean": "[true|false]"}


@cache
def properties(profile: Profile) -> dict[tuple[str, ...], dict[str, Any]]:
    """The schemas of all fields of a profile's OpenAPI document, by path."""
    top: dict[str, dict[str, Any]] = openapi("1", ROUTES, profile=profile)["components"]["schemas"][
        "CompletionRequest"
    ]["properties"]
    found: dict[tuple[str, ...], dict[str, Any]] = {(name,): schema for name, schema in top.items()}
    for name in ("stream_options", "options", "structured_outputs"):
        found |= {(name, key): schema for key, schema in top.get(name, {}).get("properties", {}).items()}
    return found


@cache
def reference() -> dict[tuple[str, ...], dict[str, str]]:
    """The rows of the reference page by path."""
    found: dict[tuple[str, ...], dict[str, str]] = {}
    outer: tuple[str, ...] = ()
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            outer = tuple(re.findall(r"^## Fields of `(.*)`$", line))
        elif line.startswith("| `"):
            name, *cells = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            found[*outer, name.strip("`")] = dict(zip(("type", "range", "default", "help"), cells, strict=True))
    return found


@cache
def flags() -> dict[tuple[str, ...], click.Option]:
    """The options of `onward completions create` by the path of the field that they set."""
    command = completions.command.commands["create"]
    names = {".".join(path).replace("_", "-"): path for path, _ in ROWS}
    options = [each for each in command.params if isinstance(each, click.Option)]
    spelled = {opt.removeprefix("--"): option for option in options for opt in option.opts if opt.startswith("--")}
    return {path: spelled[name] for name, path in names.items() if name in spelled}


def limits(schema: dict[str, Any]) -> tuple[Any, ...]:
    """Minimum, maximum and maximum number of items of a field's schema."""
    numbers = schema.get("additionalProperties") if "maxProperties" in schema else schema
    items = [each["maxItems"] for each in (schema, *schema.get("anyOf", ())) if "maxItems" in each]
    assert isinstance(numbers, dict)
    return numbers.get("minimum"), numbers.get("maximum"), schema.get("maxProperties") or next(iter(items), None)


@pytest.mark.parametrize("profile", PROFILES)
def test_law_7_the_schema_of_each_profile_has_the_names_types_defaults_and_limits_of_the_table(
    profile: Profile,
) -> None:
    schemas = properties(profile)
    known = TABLES[profile]
    expected = [
        (path, row)
        for path, row in ROWS
        if path[0] in known and (profile != "strict" or row.origin == "openai" or len(path) == 1)
    ]
    assert set(schemas) == {path for path, _ in expected}
    for path, row in expected:
        schema = schemas[path]
        assert schema.get("default") == row.default
        maximum = row.strict_maximum if profile == "strict" and row.strict_maximum else row.maximum
        max_items = row.lenient_max_items if profile == "lenient" and row.kind == "stop" else row.max_items
        assert limits(schema) == (row.minimum, maximum, max_items), path
        if row.kind in METAVARS:
            nullable = row.nullable or profile == "lenient"
            assert schema["type"] == ([row.kind, "null"] if nullable else row.kind)


@each_row(("path", "row"), ROWS, ids=lambda each: ".".join(each) if isinstance(each, tuple) else "")
def test_law_7_the_reference_page_agrees_with_the_schemas(path: tuple[str, ...], row: Parameter) -> None:
    shown = reference()[path]
    schema, strict = properties("default")[path], properties("strict").get(path)
    minimum, maximum, max_items = limits(schema)
    plain, _, in_strict = shown["range"].partition(", in strict ")
    assert plain == ", ".join(filter(None, [span(minimum, maximum), f"at most {max_items}" if max_items else ""]))
    strict_span = span(*limits(strict)[:2]) if strict is not None else ""
    assert in_strict == (strict_span if strict_span != span(minimum, maximum) and strict is not None else "")
    default = schema.get("default")
    assert shown["default"] == (
        "" if default is None else f"`{str(default).replace('True', 'true').replace('False', 'false')}`"
    )
    assert shown["help"] == schema["description"].replace("|", "\\|")
    type_words = shown["type"]
    if "enum" in schema:
        assert type_words.startswith("only ")
    elif isinstance(schema.get("type"), (str, list)):
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        assert all(name in type_words for name in names if name != "null"), type_words
    else:
        names = {each["type"] for each in schema["anyOf"]} - {"null"}
        assert all(name in type_words for name in names), type_words


def span(minimum: float | None, maximum: float | None) -> str:
    if minimum is None and maximum is None:
        return ""
    return f"{'' if minimum is None else f'{minimum:g}'} … {'' if maximum is None else f'{maximum:g}'}".strip()


def test_law_7_the_reference_page_has_no_other_fields() -> None:
    assert set(reference()) == {path for path, _ in ROWS}


@each_row(("path", "row"), ROWS, ids=lambda each: ".".join(each) if isinstance(each, tuple) else "")
def test_law_7_the_flags_agree_with_the_schema(path: tuple[str, ...], row: Parameter) -> None:
    if row.kind == "link":
        assert path not in flags()
        return
    option, schema = flags()[path], properties("default")[path]
    if row.kind in METAVARS:
        assert option.metavar == METAVARS[row.kind]
    default = schema.get("default")
    words = re.search(r"\[default (.*)\]$", option.help or "")
    assert (words[1] if words else None) == (None if default in (None, []) else str(default).lower())


@pytest.mark.parametrize("profile", PROFILES)
def test_law_7_every_example_of_the_document_is_accepted_by_its_profile(profile: Profile) -> None:
    operation = openapi("1", ROUTES, profile=profile)["paths"]["/v1/completions"]["post"]
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    assert len(examples) >= 3
    for example in examples.values():
        check_request(example["value"], profile=profile)
