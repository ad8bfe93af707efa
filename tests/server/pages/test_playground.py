"""The page of the playground as the server sends it: its start data, policy and files. tests/playground runs it in a
browser."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any, get_args

import pytest

from onward.api.openai.parameters import BY_NAME
from onward.api.parameter import Profile
from onward.models.registry import real_model_hint
from onward.server.app import App
from onward.server.pages.layout import KINDS, version
from onward.server.pages.playground import controls, playground_page
from tests.server.fakes import Call, FakeBackend, in_loop, settings
from tests.server.pages.test_reference import policy_of

MAX_COMPRESSED_BYTES = 150_000


async def get(path: str, **headers: str) -> Call:
    return await Call(App(FakeBackend(), settings()), "GET", path, b"", **headers).done()


def start_of(page: str) -> dict[str, Any]:
    found = re.search('<script type="application/json" id="start">(.*?)</script>', page, re.DOTALL)
    assert found
    start: dict[str, Any] = json.loads(found[1])
    return start


@pytest.mark.parametrize("path", ["/", "/tokenizer"])
@in_loop
async def test_only_own_scripts_run_and_only_own_hosts_are_reached(path: str) -> None:
    call = await get(path)
    policy = policy_of(call)
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    nonce = start_of(call.body.decode())["nonce"]
    assert policy["style-src"] == f"'self' 'nonce-{nonce}'"
    assert not re.search(r" on\w+=| style=|<style", call.body.decode())
    assert call.headers["x-frame-options"] == "DENY"
    again = await get(path)
    assert start_of(again.body.decode())["nonce"] != nonce


@pytest.mark.parametrize("profile", get_args(Profile))
def test_the_settings_are_the_parameters_of_the_profile(profile: Profile) -> None:
    listed = {row["name"]: row for row in controls(profile)}
    assert {"temperature", "max_tokens", "stop", "logit_bias"} <= listed.keys()
    assert not {"model", "prompt", "stream", "n_predict", "best_of_all", "options"} & listed.keys()
    assert ("min_p" in listed) == (profile != "strict")
    for name, row in listed.items():
        assert row["help"] == BY_NAME[name].help
        assert row.get("minimum") == BY_NAME[name].minimum


def test_what_the_page_starts_with_cannot_end_its_script_element() -> None:
    page = playground_page("", profile="default", requires_key=False, has_ledger=False, nonce="</script><b>")
    assert "</script><b>" not in page
    assert start_of(page)["nonce"] == "</script><b>"


@in_loop
async def test_the_page_names_the_command_that_the_log_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["venv/onward", "serve"])
    command = start_of((await get("/")).body.decode())["realModelCommand"]
    assert command == "venv/onward serve smollm2" and real_model_hint().endswith(f": {command}")


@in_loop
async def test_files_are_compressed_and_kept_until_they_change() -> None:
    page = (await get("/")).body.decode()
    for name in ("playground.js", "playground.css"):
        address = f"/playground/{name}?v={version()}"
        assert f'"{address[1:]}"' in page
        call = await get(address, **{"accept-encoding": "gzip, br"})
        assert (call.status, call.headers["content-type"]) == (200, KINDS[name])
        assert "immutable" in call.headers["cache-control"]
        assert call.headers["content-encoding"] == "gzip"
        assert gzip.decompress(call.body) == (await get(f"/playground/{name}")).body
    call = await get("/playground/playground.js?v=older")
    assert call.headers["cache-control"] == "no-cache", "an old page must not keep a new file under the old name"
    assert "content-encoding" not in call.headers


@pytest.mark.parametrize("page", ["playground", "reference", "usage"])
@in_loop
async def test_the_pages_are_small(page: str) -> None:
    names = (f"{page}.js", f"{page}.css")
    calls = [await get(f"/playground/{name}", **{"accept-encoding": "gzip"}) for name in names]
    assert sum(len(call.body) for call in calls) <= MAX_COMPRESSED_BYTES


@pytest.mark.parametrize("path", ["/favicon.svg", "/favicon.ico"])
@in_loop
async def test_there_is_an_icon(path: str) -> None:
    call = await get(path)
    assert (call.status, call.headers["content-type"]) == (200, "image/svg+xml")
    assert call.body.startswith(b"<svg")


@pytest.mark.parametrize("path", ["/playground/nope.js", "/playground/../app.py", "/playground/"])
@in_loop
async def test_other_files_are_not_served(path: str) -> None:
    assert (await get(path)).status == 404


@in_loop
async def test_pages_and_their_files_need_no_key() -> None:
    app = App(FakeBackend(), settings(api_key=("sk-a",)))
    for path in ("/", "/tokenizer", "/playground/playground.js", "/favicon.svg", "/docs/", "/usage"):
        assert (await Call(app, "GET", path).done()).status == 200
    page = (await Call(app, "GET", "/").done()).body.decode()
    assert start_of(page)["requiresKey"] is True
