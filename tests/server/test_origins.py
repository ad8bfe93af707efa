"""The hosts and web pages that a server answers. The headers are those that browsers send."""

from __future__ import annotations

from typing import Any

import pytest

from onward.errors import SetupError
from onward.server.app import App
from onward.settings import resolve
from tests.server.fakes import Call, FakeBackend, completion, in_loop, settings

LOCAL = {"host": "127.0.0.1:8000"}
PAGE = LOCAL | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors", "sec-fetch-dest": "empty"}


async def status(given: dict[str, Any], **headers: str) -> int:
    return (await completion(App(FakeBackend(), settings(**given)), headers=headers).done()).status


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "127.0.0.1", "localhost:8000", "LocalHost", "localhost.", "app.localhost:8000", "[::1]:8000",
     "127.1.2.3", "host.docker.internal:8000", ""],
)  # fmt: skip
@in_loop
async def test_a_keyless_loopback_server_answers_as_this_machine(host: str) -> None:
    assert await status({}, host=host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.5:8000",
     "evil.example@127.0.0.1", "evil.example/127.0.0.1", "[::2]", "[", "127.0.0.1:x", "\xff", "[::1].evil.example",
     "[::1]evil.example", "[::1]:8000.evil.example", "[::1%25eth0]", "[127.0.0.1]", "[localhost]", "]127.0.0.1[", "::1",
     "127.0.0.1,evil.example", "127.0.0.1 evil.example", "127.0.0.1%2eevil.example", "localhost..", "127.0.0.1:8000:1",
     f"{'a' * 300}.localhost"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/completions", "/health", "/", "/nowhere"])
@in_loop
async def test_a_name_that_was_rebound_to_this_machine_is_refused(host: str, path: str) -> None:
    call = await Call(
        App(FakeBackend(), settings()), "POST" if "completions" in path else "GET", path, host=host
    ).done()
    assert call.status == 403
    assert "is not for requests to the host" in call.error["message"]
    assert "--allowed-host" in call.error["message"]


@in_loop
async def test_an_allowed_host_is_answered_and_only_it_even_with_keys() -> None:
    given: dict[str, Any] = {"allowed_host": ("models.example",)}
    assert await status(given, host="models.example:443") == 200
    assert await status(given, host="other.example") == 403
    given |= {"api_key": ("sk-a",)}
    assert await status(given, host="other.example", **{"api-key": "sk-a"}) == 403
    assert await status({"allowed_host": ("[fd00::1]",)}, host="[fd00:0::1]:443") == 200
    assert await status({"api_key": ("sk-a",)}, host="other.example", **{"api-key": "sk-a"}) == 200


@pytest.mark.parametrize(
    "origin",
    ["http://127.0.0.1:8000", "http://localhost:5173", "https://localhost", "http://[::1]:3000", "http://a.localhost",
     "chrome-extension://abcdef", "moz-extension://0-1", "vscode-webview://x", "app://obsidian.md", "tauri://localhost",
     "file://"],
)  # fmt: skip
@in_loop
async def test_pages_and_programs_of_this_machine_may_read(origin: str) -> None:
    call = await completion(App(FakeBackend(), settings()), headers=PAGE | {"origin": origin}).done()
    assert call.status == 200
    assert call.headers["access-control-allow-origin"] == origin
    assert call.headers["vary"] == "origin"


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "http://evil.example:8000", "null", "http://127.0.0.1.evil.example",
     "http://localhost.evil.example", "http://192.168.1.9", "http://localhost@evil.example", "evil", "https://",
     "http://[::1].evil.example", "http://[::1]evil.example", "http://[::1]:80.evil.example", "http://[127.0.0.1]",
     "http://::1", "http://]127.0.0.1[", "http://127.0.0.1%2eevil.example", "http://127.0.0.1:80:80", "http://[::1%25lo]",
     "http://localhost evil.example", "http://localhost,evil.example"],
)  # fmt: skip
@in_loop
async def test_pages_of_other_sites_are_refused_before_anything_runs(origin: str) -> None:
    backend = FakeBackend()
    app = App(backend, settings())
    for headers in ({"content-type": "text/plain"}, {}):
        call = await completion(app, headers=PAGE | {"origin": origin} | headers).done()
        assert call.status == 403
        assert "accepts no requests from web pages" in call.error["message"]
    preflight = PAGE | {"origin": origin, "access-control-request-method": "POST"}
    call = await Call(app, "OPTIONS", "/v1/completions", b"", **preflight).done()
    assert call.status == 403
    assert "access-control-allow-origin" not in call.headers
    assert backend.requests == []


@in_loop
async def test_the_preflight_of_a_local_page_is_allowed() -> None:
    asked = {"origin": "http://localhost:5173", "access-control-request-method": "POST"}
    asked |= {"access-control-request-headers": "authorization,content-type"}
    call = await Call(App(FakeBackend(), settings()), "OPTIONS", "/v1/completions", b"", **PAGE, **asked).done()
    assert call.status == 204
    assert call.headers["access-control-allow-origin"] == "http://localhost:5173"
    assert call.headers["access-control-allow-headers"] == "authorization,content-type"


@in_loop
async def test_images_and_scripts_of_other_sites_get_nothing_and_links_work() -> None:
    hidden = LOCAL | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"}
    link = LOCAL | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    typed = LOCAL | {"sec-fetch-site": "none", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    app = App(FakeBackend(), settings())
    assert [(await Call(app, "GET", "/docs", b"", **headers).done()).status for headers in (hidden, link, typed)] == [
        403,
        200,
        200,
    ]


@in_loop
async def test_allowed_origins_are_answered() -> None:
    given = {"allowed_origin": ("https://play.example", "null")}
    for origin in ("https://play.example", "null"):
        assert await status(given, **PAGE, origin=origin) == 200
    assert await status(given, **PAGE, origin="https://evil.example") == 403
    assert await status({"allowed_origin": ("*",)}, **PAGE, origin="https://evil.example") == 200
    own = {"host": "models.example", "origin": "https://models.example"}
    assert await status({"allowed_host": ("models.example",)}, **own) == 200


@pytest.mark.parametrize("given", [{"api_key": ("sk-a",)}, {"host": "0.0.0.0", "no_auth": True}])
@in_loop
async def test_a_server_with_keys_or_for_everybody_allows_every_page(given: dict[str, Any]) -> None:
    headers = {"host": "x", "origin": "https://play.example", "api-key": "sk-a"}
    call = await completion(App(FakeBackend(), settings(**given)), headers=headers).done()
    assert call.status == 200
    assert call.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("allowed_host", "http://x"),
        ("allowed_host", "x:80"),
        ("allowed_origin", "x"),
        ("allowed_origin", "https://x/y"),
    ],
)
def test_what_is_neither_a_host_nor_an_origin_is_refused(flag: str, value: str) -> None:
    with pytest.raises(SetupError, match="must be"):
        resolve({flag: [value]}, environ={})
    assert resolve({"allowed_origin": ["HTTPS://X.example/"]}, environ={}).settings.allowed_origin == (
        "https://x.example",
    )
