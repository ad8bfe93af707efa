"""The HTML pages without scripts: /docs, and what `/` shows to browsers that run none."""

from __future__ import annotations

import html
import json
import re
import shlex
import urllib.parse

import pytest

from onward.api.openapi import openapi
from onward.api.parameter import Profile
from onward.server.app import ROUTES, App
from onward.server.pages.playground import landing
from onward.server.pages.reference import reference_page
from tests.server.fakes import Call, FakeBackend, in_loop, settings

DOCUMENT = openapi("1", ROUTES)
PAGE = reference_page(DOCUMENT)


@in_loop
async def test_the_pages_load_nothing_from_the_network() -> None:
    for path in ("/", "/tokenizer", "/docs", "/docs/", "/usage"):
        call = await Call(App(FakeBackend(), settings()), "GET", path).done()
        page = call.body.decode()
        assert call.headers["content-type"] == "text/html; charset=utf-8"
        assert not re.search(r"<(img|iframe)|url\(|@import", page)
        for address in re.findall(r'(?:src|href)="([^"]*)"', page):
            assert not re.match(r"(\w+:)?//", address), address


def test_names_of_models_are_escaped() -> None:
    page = landing(["<b>"], "http://x", requires_key=False)
    assert "<b>" not in page and "&lt;b&gt;" in page


async def pasted(keys: tuple[str, ...], **headers: str) -> list[str]:
    """Return the words of the landing page's command, as a shell parses them."""
    page = (
        await Call(App(FakeBackend(), settings(api_key=keys, allowed_origin=("*",))), "GET", "/", b"", **headers).done()
    ).body.decode()
    found = re.search("<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    assert found
    return shlex.split(found[1].replace("&#x27;", "'").replace("&quot;", '"').replace("\\\n", ""))


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        ({"host": "10.0.0.5:8123"}, "http://10.0.0.5:8123"),
        ({"host": "[::1]:8000"}, "http://[::1]:8000"),
        ({"host": "x", "x-forwarded-proto": "https", "x-forwarded-host": "api.example"}, "https://api.example"),
        ({"host": "a;rm -rf ~"}, "http://127.0.0.1:8000"),
        ({}, "http://127.0.0.1:8000"),
    ],
)
@in_loop
async def test_the_first_command_can_be_pasted_into_a_shell(headers: dict[str, str], address: str) -> None:
    words = await pasted((), **headers)
    assert words[:2] == ["curl", f"{address}/v1/completions"]
    assert json.loads(words[-1]) == {"model": "storyteller", "prompt": "Once upon a time"}
    assert not any("Authorization" in word for word in words)


@in_loop
async def test_the_first_command_sends_a_key_where_one_is_required() -> None:
    words = await pasted(("sk-a",), host="x")
    assert words == ["curl", "http://x/v1/models", "-H", "Authorization: Bearer YOUR_KEY"]


@in_loop
async def test_no_page_shows_names_of_models_where_keys_are_required() -> None:
    app = App(FakeBackend(), settings(api_key=("sk-a",)))
    for path in ("/", "/docs", "/openapi.json"):
        call = await Call(app, "GET", path).done()
        assert call.status == 200
        assert "org/tiny" not in call.body.decode()
    page = (await Call(app, "GET", "/").done()).body.decode()
    assert "storyteller" not in page
    assert "MODEL" in page


@pytest.mark.parametrize("path", ["/docs", "/usage"])
@in_loop
async def test_browsers_run_only_this_server_s_script(path: str) -> None:
    call = await Call(App(FakeBackend(), settings()), "GET", path).done()
    policy = policy_of(call)
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["style-src"] == "'self'"
    assert not re.search(r"<script(?! type=\"module\" src=\"\./playground/)|<style| style=| on\w+=", call.body.decode())
    assert (call.headers["x-frame-options"], call.headers["referrer-policy"]) == ("DENY", "no-referrer")


@pytest.mark.parametrize("path", ["/docs", "/docs/", "/usage"])
@in_loop
async def test_files_and_other_pages_are_found_below_a_proxy_s_prefix(path: str) -> None:
    app = App(FakeBackend(), settings())
    page = (await Call(app, "GET", path).done()).body.decode()
    addresses = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert len(addresses) >= 5
    for address in addresses:
        found = urllib.parse.urljoin(f"http://x/prefix{path}", address)
        assert found.startswith("http://x/prefix/"), address
        assert (await Call(app, "GET", found.removeprefix("http://x/prefix")).done()).status == 200, address


def policy_of(call: Call) -> dict[str, str]:
    """Return the directives of a content security policy."""
    return dict(part.strip().split(" ", 1) for part in call.headers["content-security-policy"].split(";"))


def test_a_name_with_a_quote_stays_one_word_of_the_command() -> None:
    assert "&#x27;&quot;&#x27;&quot;&#x27;" in landing(["it's"], "http://x", requires_key=False)


def test_every_path_and_request_field_is_listed_once() -> None:
    for path in DOCUMENT["paths"]:
        assert path in PAGE
    for name in DOCUMENT["components"]["schemas"]["CompletionRequest"]["properties"]:
        assert f"<code>{name}</code>" in PAGE
    assert PAGE.count("<td><code>temperature</code>") == 1
    assert PAGE.count('<h3 id="schema-CompletionRequest">') == 1
    assert PAGE.count("<p>Example: stream</p>") == 1


@pytest.mark.parametrize("name", ["stream_options", "options"])
def test_fields_of_inner_objects_are_described(name: str) -> None:
    inner = DOCUMENT["components"]["schemas"]["CompletionRequest"]["properties"][name]["properties"]
    assert inner
    for field in inner:
        assert f"<td><code>{name}.{field}</code>" in PAGE


ANSWERS = [
    "Completion", "CompletionChunk", "Choice", "Logprobs", "Usage", "PromptTokensDetails", "CompletionTokensDetails"
]  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_every_field_of_a_response_is_described(name: str) -> None:
    table = PAGE.partition(f'id="schema-{name}"')[2].partition("</table>")[0]
    for field, schema in DOCUMENT["components"]["schemas"][name]["properties"].items():
        assert schema["description"]
        assert f"<code>{field}</code>" in table


def test_every_link_within_the_page_has_a_target() -> None:
    ids = re.findall(r'id="([^"]+)"', PAGE)
    assert len(ids) == len(set(ids))
    links = set(re.findall(r'href="#([^"]+)"', PAGE))
    assert {"authentication", "post-v1-completions", "schema-Completion", "schema-Error"} <= links
    assert links <= set(ids)


def test_the_error_statuses_are_those_of_this_server() -> None:
    statuses = set(DOCUMENT["paths"]["/v1/completions"]["post"]["responses"])
    assert statuses >= {"401", "403", "408", "429"}
    assert set(DOCUMENT["paths"]["/docs"]["get"]["responses"]) == {"200", "403"}
    assert not re.search(r"\b402\b", PAGE + json.dumps(DOCUMENT))


def test_the_authentication_section_says_where_no_key_is_needed() -> None:
    section = PAGE.partition('<h2 id="authentication">')[2].partition("<h2")[0]
    assert "Authorization: Bearer" in section
    assert "/health" in section
    assert "/metrics" not in section


def test_every_operation_has_a_form_that_sends_an_example() -> None:
    forms = re.findall(r'<form class="try" hidden data-method="(\w+)">(.*?)</form>', PAGE, re.DOTALL)
    paths = DOCUMENT["paths"].items()
    operations = [
        (method, path) for path, methods in paths for method in ("get", "post", "delete") if method in methods
    ]
    operations.remove(("post", "/v1/files"))  # it takes a file
    assert len(forms) == len(operations)
    for (method, form), (_, path) in zip(forms, operations, strict=True):
        bodies = re.findall(r"<textarea[^>]*>(.*?)</textarea>", form, re.DOTALL)
        assert (method == "POST" and not path.endswith("/cancel")) == bool(bodies)
        for body in bodies:
            assert isinstance(json.loads(html.unescape(body)), dict)
        assert "{id}" not in form


@pytest.mark.parametrize("profile", ["strict", "lenient"])
def test_the_reference_is_made_for_every_profile(profile: Profile) -> None:
    assert reference_page(openapi("1", ROUTES, profile=profile)).count("<form") > 10
