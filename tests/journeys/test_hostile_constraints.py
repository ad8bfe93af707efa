"""Constraints that must neither end nor block a server are sent to one; after each, a normal request is answered.

Right values: the JSON Schema specification (draft 2020-12, mathematical numbers) for what a text must be; 400 with
`param` where a schema is refused.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward.constraints import grammars
from onward.constraints.process import checker
from onward.server.app import App
from tests.server.fakes import Call, completion, in_loop, settings
from tests.toy_backend import make_backend, running

ROOT = Path(__file__).parents[2]
MIN64, MAX64 = -(2**63), 2**63 - 1
EXACT: list[tuple[dict[str, Any], str]] = [
    ({"const": MIN64}, str(MIN64)),
    ({"const": 2**53 + 1}, "9007199254740993"),
    ({"enum": [2**64 - 1]}, "18446744073709551615"),
    ({"const": -(2**53) - 1, "type": "integer"}, "-9007199254740993"),
    ({"const": [2**60 + 1, "x"], "title": "a list"}, '[1152921504606846977,"x"]'),
    ({"type": "integer", "minimum": MIN64, "maximum": MIN64}, str(MIN64)),
    ({"type": "integer", "minimum": 2**70, "maximum": 2**70}, str(2**70)),
    ({"type": "integer", "exclusiveMinimum": 10**18, "exclusiveMaximum": 10**18 + 2}, str(10**18 + 1)),
    ({"type": "integer", "minimum": -1e19, "maximum": -1e19}, "-10000000000000000000"),
    (
        {
            "type": "object",
            "properties": {"a": {"const": 1}},
            "required": ["a"],
            "additionalProperties": False,
            "patternProperties": {"^a$": {"type": "integer"}},
        },
        '{"a":1}',
    ),
    ({"type": "string", "minLength": 0.0, "maxLength": 0.0}, '""'),
    ({"type": "integer", "multipleOf": 97, "minimum": 97 * 10**12, "maximum": 97 * 10**12}, "97000000000000"),
    ({"type": "integer", "multipleOf": 65537, "minimum": 65537 * 2 - 9, "maximum": 65537 * 2 + 9}, "131074"),
    ({"type": "number", "multipleOf": 0.25, "minimum": 0.2, "maximum": 0.3}, "0.25"),
    ({"type": "integer", "multipleOf": 7, "exclusiveMinimum": 14, "maximum": 27.5}, "21"),
    ({"anyOf": [{"type": "number", "multipleOf": 0.25, "minimum": 0.3, "maximum": 0.4}, {"const": "a"}]}, '"a"'),
    ({"type": ["integer", "null"], "multipleOf": 5, "minimum": 1, "maximum": 2}, "null"),
]
"""Schemas with one text, without white space."""

RANGES = [
    (MIN64, MAX64), (MIN64, MIN64 + 508), (-(10**20), -(10**19)), (0, 2**64 - 1), (2**53, 2**53 + 10), (-12, 2**53 + 1)
]  # fmt: skip

REFUSED: list[tuple[object, str]] = [
    ({"properties": {"a": {"const": MIN64}}}, str(MIN64)),
    ({"properties": {"a": {"const": 2**53 + 1}}}, "9007199254740993"),
    ({"type": "array", "items": {"enum": [1, 2**64 - 1]}}, "18446744073709551615"),
    ({"properties": {"a": {"type": "integer", "minimum": -1e30, "maximum": -1e29}}}, "minimum: -1e+30"),
    ({"properties": {"a": {"type": "integer", "minimum": MIN64}}}, str(MIN64)),
    ({"type": "number", "exclusiveMaximum": 10**18}, str(10**18)),
    ({"type": "integer", "multipleOf": 2**31}, "2147483648"),
    ({"type": "integer", "multipleOf": 2**32 - 1}, "4294967295"),
    ({"type": "integer", "multipleOf": 500_000_000}, "500000000"),
    ({"type": "number", "multipleOf": 0.07}, "0.07"),
    ({"type": "integer", "multipleOf": 0}, "not greater than 0"),
    ({"type": "number", "multipleOf": 0.1, "minimum": 0.3, "maximum": 0.3}, "0.1 cannot be kept exactly"),
    ({"type": "number", "multipleOf": 0.25, "minimum": 0.26, "exclusiveMaximum": 0.5}, "no multiple of 0.25 is within"),
    ({"type": "number", "multipleOf": 0.1, "exclusiveMaximum": 2**52 + 2}, "0.1 cannot be kept exactly"),
    ({"type": "array", "maxItems": 2**64}, "18446744073709551616"),
    ({"type": "string", "minLength": 1e30}, "minLength: 1e+30"),
    ({"x-guidance": 5}, "'x-guidance' must be an object"),
    ({"allOf": [{"type": "string", "pattern": f"^.*{letter}.*$"} for letter in "abcdefghijklmnop"]}, "too complex"),
    ({"allOf": [{"type": "integer", "multipleOf": 65537}, {"multipleOf": 65536}]}, "65536, 65537"),
    ({"type": "object", "minProperties": 3}, "minProperties: 3"),
    ({"$ref": "#"}, "matches no text"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}, "matches no text"),
    ({"type": "integer", "minimum": 2**60, "maximum": 2**59}, "matches no text"),
    ('{"const": 1e400}', "beyond the range"),
    ("[" * 100_000, "at most"),
    ("{", "not JSON"),
    ('{"items":' * 5_000 + "{}" + "}" * 5_000, "nested too deeply"),
    ("[" * 30_000, "nested too deeply"),
]
"""Schemas, objects or texts, and a part of the message."""


def _chain(keyword: str, length: int) -> dict[str, Any]:
    """References that lead from one definition to the next."""

    def link(index: int) -> dict[str, Any]:
        ref = {"$ref": f"#/$defs/d{index + 1}"}
        inner: Any = [ref] if keyword == "prefixItems" else {"a": ref} if keyword == "properties" else ref
        return {keyword: inner}

    return {"$ref": "#/$defs/d0", "$defs": {f"d{n}": link(n) for n in range(length)} | {f"d{length}": {}}}


async def complete(app: Any, **fields: Any) -> Call:
    body = {"model": "toy", "prompt": "x", "max_tokens": 60, "temperature": 0} | fields
    return await Call(app, "POST", "/v1/completions", json.dumps(body).encode()).done()


@in_loop
async def test_numbers_and_names_are_exact() -> None:
    async with running(make_backend()) as backend:
        app = App(backend, settings())
        for schema, text in EXACT:
            call = await complete(app, json_schema=schema, disable_any_whitespace=True)
            assert call.status == 200, (schema, call.body)
            assert json.loads(call.body)["choices"][0]["text"] == text, schema


@in_loop
async def test_an_integer_is_within_its_bounds_however_large() -> None:
    async with running(make_backend()) as backend:
        app = App(backend, settings())
        for low, high in RANGES:
            schema = {"type": "integer", "minimum": low, "maximum": high}
            call = await complete(app, json_schema=schema, temperature=1.5, seed=3, n=8)
            for choice in json.loads(call.body)["choices"]:
                assert low <= int(choice["text"]) <= high


@in_loop
async def test_what_cannot_be_exact_or_is_too_deep_is_refused_by_name() -> None:
    chains: list[tuple[object, str]] = [
        (_chain(keyword, length), "nested too deeply")
        for keyword, length in (("prefixItems", 825), ("properties", 868), ("items", 1012))
    ]
    async with running(make_backend()) as backend:
        app = App(backend, settings(max_body=10_000_000))
        for schema, words in [*REFUSED, *chains]:
            call = await complete(app, json_schema=schema)
            assert call.status == 400, schema
            assert call.error["param"] == "json_schema"
            assert words in call.error["message"], (schema, call.error["message"])


ENTRIES: dict[str, tuple[str, dict[str, Any]]] = {
    "response_format": (
        "/v1/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"const": MIN64}}}},
    ),
    "guided_json": ("/v1/completions", {"guided_json": {"const": MIN64}}),
    "structured_outputs": ("/v1/completions", {"structured_outputs": {"json": {"const": MIN64}}}),
    "lark": ("/v1/completions", {"grammar": f'start: %json {{"const": {MIN64}}}'}),
    "lark in a list": ("/v1/completions", {"grammar": f'start: "x" %json {{"items": {{"const": {MIN64}}}}}'}),
    "ollama": ("/api/generate", {"stream": False, "format": {"const": MIN64}}),
    "text-generation-inference": (
        "/generate",
        {"inputs": "x", "parameters": {"max_new_tokens": 30, "grammar": {"type": "json", "value": {"const": MIN64}}}},
    ),
    "llama-server": ("/completion", {"n_predict": 30, "json_schema": {"const": MIN64}}),
}


@in_loop
async def test_no_way_in_leads_to_a_crash() -> None:
    async with running(make_backend()) as backend:
        app = App(backend, settings())
        for path, fields in ENTRIES.values():
            body = fields if "inputs" in fields else {"model": "toy", "prompt": "x", "max_tokens": 30} | fields
            call = await Call(app, "POST", path, json.dumps(body).encode()).done()
            assert call.status in (200, 400, 422), (path, call.body)
            assert call.status != 200 or str(MIN64) in call.body.decode()
            assert (await complete(app, regex="[a-c]{3}")).status == 200


DIVISOR = {"type": "integer", "multipleOf": 2**31}
FEWER_DIGITS = (
    "Invalid 'json_schema': multipleOf: 2147483648 cannot be computed exactly; use an integer up to 429496729, or a "
    "decimal fraction with fewer digits."
)


@in_loop
async def test_constraints_are_answered_after_nine_divisors_of_which_one_never_returned() -> None:
    """One after another, then all at once; none is cached."""
    async with running(make_backend()) as backend:
        app = App(backend, settings())
        for at_once in (False, True):
            nine = [complete(app, json_schema=DIVISOR | {"title": f"{at_once} {number}"}) for number in range(9)]
            for call in await asyncio.gather(*nine) if at_once else [await each for each in nine]:
                assert (call.status, call.error["message"]) == (400, FEWER_DIGITS)
            assert json.loads((await complete(app, json_schema={"const": 5})).body)["choices"][0]["text"] == "5"


@pytest.mark.slow
@in_loop
async def test_while_nine_constraints_of_a_client_take_long_those_of_others_are_answered() -> None:
    async with running(make_backend()) as backend:
        app = App(backend, settings(api_key=("sk-first", "sk-second")))
        first, second = ({"authorization": f"Bearer sk-{name}"} for name in ("first", "second"))
        nine = [
            completion(app, headers=first, model="toy", max_tokens=3, regex="a?" * 30_000 + str(number))
            for number in range(9)
        ]
        for number in range(3):
            call = await completion(app, headers=second, model="toy", max_tokens=3, regex=f"[a-c]{{2}}{number}").done()
            assert call.status == 200 and not all(each.ended for each in nine)
        for call in nine:
            assert (await call.done()).error[
                "message"
            ] == "Invalid 'regex': it takes too long to compute; make it simpler."


TOO_LARGE: list[tuple[str, object]] = [
    ("regex", "a?" * 3_000),
    ("regex", "a?" * 10_000),
    ("regex", "a{1000000}"),
    ("regex", "((a{100}){100}){100}"),
    ("regex", "(a?b?)" * 8_000),
    ("regex", "(a*)*" * 10_000),
    ("json_schema", {"enum": [[[[[number]]]] for number in range(3_000)]}),
    ("json_schema", {"type": "integer", "multipleOf": 429_496_728, "minimum": 1}),
]
"""Constraints that the library takes long for, or gives up at a later token."""


@pytest.mark.slow
@in_loop
async def test_what_is_too_large_is_refused_before_the_first_token_in_the_projects_words() -> None:
    async with running(make_backend()) as backend:
        app = App(backend, settings())
        for field, value in TOO_LARGE:
            call = await complete(app, **{field: value})
            assert call.status == 400, (field, str(value)[:60])
            assert call.error["message"] in (
                f"Invalid '{field}': it is too complex: write fewer counted repetitions, alternatives or levels.",
                f"Invalid '{field}': it takes too long to compute; make it simpler.",
            )


TAKES_LONG: list[tuple[str, object]] = [
    ("regex", "a?" * 30_000),
    ("regex", "a*" * 20_000),
    ("json_schema", {"multipleOf": 1_000_003}),
]
CHAIN = "start: r0\n" + "".join(f"r{index}: r{index + 1}\n" for index in range(2673)) + 'r2673: "a"'


@pytest.mark.slow
def test_what_takes_too_long_is_refused_while_others_are_answered() -> None:
    async def test() -> None:
        async with running(make_backend()) as backend:
            app = App(backend, settings())
            for field, value in TAKES_LONG:
                constraint = {field: value}
                held = asyncio.create_task(complete(app, **constraint))
                assert (await complete(app, regex="[a-c]{3}")).status == 200
                first = await held
                assert first.status == 400
                assert first.error["message"] == f"Invalid '{field}': it takes too long to compute; make it simpler."
                again = await complete(app, **constraint)
                assert again.error == first.error

    asyncio.run(test())


@in_loop
async def test_groups_that_are_nested_too_deeply_and_bounds_inside_of_lark_are_refused() -> None:
    async with running(make_backend()) as backend:
        app = App(backend, settings())
        call = await complete(app, regex="(" * 10_000 + "a" + ")" * 10_000)
        assert call.error["message"] == (
            "Invalid 'regex': its groups are nested too deeply; at most 200 levels are supported."
        )
        assert (await complete(app, regex="(" * 200 + "a" + ")" * 200)).json["choices"][0]["text"] == "a"
        call = await complete(app, grammar='start: %json {"exclusiveMinimum": 0, "maximum": 0.9}')
        assert "exclusiveMinimum: 0 cannot be kept so near to the other bound" in call.error["message"]


@in_loop
async def test_rules_that_lead_too_deep_are_refused() -> None:
    async with running(make_backend()) as backend:
        app = App(backend, settings())
        call = await complete(app, grammar=CHAIN)
        assert call.status == 400 and call.error["param"] == "grammar"
        assert "nested too deeply" in call.error["message"]


@pytest.mark.slow
@pytest.mark.parametrize("in_disposable_process", [False, True])
def test_grammars_that_come_later_change_none_that_are_in_use(
    in_disposable_process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the cache holds fewer than two: an evicted grammar is compiled again, or stays while it is in use."""
    expressions = [f"[{letter}-z ]{{20,40}}" for letter in "abcdefgh"]

    async def texts(*, at_once: bool) -> list[str]:
        async with running(make_backend(in_disposable_process=in_disposable_process)) as backend:
            app = App(backend, settings())
            wanted = [complete(app, regex=each, temperature=1, seed=7) for each in expressions * 2]
            calls = await asyncio.gather(*wanted) if at_once else [await each for each in wanted]
        return [json.loads(call.body)["choices"][0]["text"] for call in calls]

    expected = asyncio.run(texts(at_once=False))
    monkeypatch.setattr(grammars, "MAX_COMPILED_GRAMMARS", 1)
    monkeypatch.setattr(checker, "MAX_KNOWN", 1)
    assert asyncio.run(texts(at_once=True)) == expected
    assert all(re.fullmatch(each, text) for each, text in zip(expressions * 2, expected, strict=True))


@pytest.mark.slow
def test_a_process_that_must_not_die_never_loads_the_library() -> None:
    """A server without a process for its engine, as the Python API: grammars of every notation are answered."""
    program = """
import asyncio, sys
from onward.api.openai.reply import fold_whole
from tests.toy_backend import make_backend, running
from onward.api.openai.decode import check_request

async def main():
    async with running(make_backend(in_disposable_process=True)) as backend:
        for fields in (
            {"regex": "[a-c]{3}"}, {"choice": ["a", "b"]}, {"json_schema": {"type": "integer"}},
            {"grammar": 'root ::= "a" [b-d]*'}, {"grammar": 'start: "a" /b+/'}, {"json_schema": {"const": 2**53 + 1}},
        ):
            request = check_request({"model": "toy", "prompt": "x", "max_tokens": 20, **fields})
            whole = await fold_whole(await backend.complete(request), request)
            assert whole.choices[0].text, fields
    assert "llguidance" not in sys.modules

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
