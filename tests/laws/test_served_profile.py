"""/openapi.json and /docs describe the profile that is served, and every interface comes from one declaration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from onward.api.openai.parameters import PARAMETERS, TABLES
from onward.api.parameter import Profile
from onward.cli.request.flags import request_flags
from onward.errors import ApiError
from onward.server.app import App
from tests.api.openai.decoding import decode_request
from tests.server.fakes import Call, FakeBackend, completion, in_loop, settings

REQUIRED_TOGETHER: dict[str, dict[str, Any]] = {
    "min_tokens": {"max_tokens": 99},
    "stream_options": {"stream": True},
}
PROFILES: list[Profile] = ["strict", "default", "lenient"]
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "parameters.md"


async def served(profile: Profile, path: str) -> Call:
    return await Call(App(FakeBackend(), settings(profile=profile)), "GET", path).done()


async def request_schema(profile: Profile) -> dict[str, Any]:
    document = (await served(profile, "/openapi.json")).json
    schema: dict[str, Any] = document["components"]["schemas"]["CompletionRequest"]
    return schema


def is_valid(value: object, schema: dict[str, Any]) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def is_accepted(fields: dict[str, Any], profile: Profile) -> bool:
    try:
        decode_request(json.dumps(fields).encode(), profile=profile)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("profile", PROFILES)
@in_loop
async def test_law_7_one_declaration_makes_schema_decoder_flags_page_and_reference(profile: Profile) -> None:
    known = TABLES[profile]
    schema = await request_schema(profile)
    assert list(schema["properties"]) == list(known)
    page = (await served(profile, "/docs")).body.decode()
    table = page.partition('id="schema-CompletionRequest"')[2].partition("</table>")[0]
    for row in PARAMETERS:
        assert (f"<tr><td><code>{row.name}</code>" in table) == (row.name in known), row.name
        aids = REQUIRED_TOGETHER.get(row.name, {})
        accepted = is_accepted({"model": "m", **aids, row.name: row.example}, profile)
        assert accepted == (row.name in known or profile == "lenient"), row.name
    flags = {flag.path[0] for flag in request_flags()}
    assert flags == {row.name for row in PARAMETERS if row.kind != "link"}
    reference = REFERENCE.read_text(encoding="utf-8")
    assert all(f"`{row.name}`" in reference for row in PARAMETERS)


@pytest.mark.parametrize("profile", PROFILES)
@in_loop
async def test_the_served_document_states_what_its_profile_accepts(profile: Profile) -> None:
    schema = await request_schema(profile)
    assert ("model" in schema["required"]) == (not is_accepted({"prompt": "x"}, profile))
    assert schema["additionalProperties"] == is_accepted({"model": "m", "foo": 1}, profile)
    maximum = schema["properties"]["logprobs"].get("maximum")
    assert maximum == (5 if profile == "strict" else None)
    assert is_accepted({"model": "m", "logprobs": 6}, profile) == (maximum is None)
    stops = schema["properties"]["stop"]["anyOf"][1].get("maxItems")
    assert is_accepted({"model": "m", "stop": ["a"] * 5}, profile) == (stops is None or stops >= 5)


@pytest.mark.parametrize("profile", PROFILES)
@in_loop
async def test_only_the_engine_route_needs_no_model_in_the_body(profile: Profile) -> None:
    paths = (await served(profile, "/openapi.json")).json["paths"]
    schema = paths["/v1/engines/{id}/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    own = await request_schema(profile)
    assert list(schema["properties"]) == list(own["properties"])
    assert schema["required"] == []
    app = App(FakeBackend(), settings(profile=profile))
    for body in (b'{"prompt": "x"}', b'{"model": null}', b'{"model": ""}', b'{"model": "storyteller"}'):
        engine = await Call(app, "POST", "/v1/engines/storyteller/completions", body).done()
        assert engine.status == 200 and is_valid(json.loads(body), schema)
        plain = await Call(app, "POST", "/v1/completions", body).done()
        assert (plain.status == 200) == is_valid(json.loads(body), own), body


@pytest.mark.parametrize("profile", PROFILES)
@in_loop
async def test_every_example_of_the_served_document_is_accepted(profile: Profile) -> None:
    document = (await served(profile, "/openapi.json")).json
    content = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]
    assert len(content["examples"]) >= 3
    app = App(FakeBackend(), settings(profile=profile))
    for name, example in content["examples"].items():
        assert (await completion(app, **example["value"]).done()).status == 200, name


@in_loop
async def test_documents_and_pages_name_the_profile() -> None:
    for profile in PROFILES:
        assert f"`{profile}` profile" in (await served(profile, "/openapi.json")).json["info"]["description"]
        assert f"<code>{profile}</code> profile" in (await served(profile, "/docs")).body.decode()
