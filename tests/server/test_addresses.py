"""Addresses of clients behind proxies that are trusted, and behind others."""

from __future__ import annotations

import logging

import pytest

from onward import values
from onward.server.addresses import MAX_HOPS, TrustedProxies
from onward.server.app import App
from onward.server.connection import server_config
from tests.server.fakes import Call, FakeBackend, completion, in_loop, settings
from tests.tables import each_row

PROXIES = TrustedProxies(["10.0.0.0/8", "fd00::/8", "192.0.2.1/32"])


@each_row(
    ("peer", "headers", "client"),
    [
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("203.0.113.1", ["198.51.100.7"], "203.0.113.1"),  # not a proxy
        ("-", ["198.51.100.7"], "-"),  # a Unix socket
        ("/run/onward.sock", ["198.51.100.7"], "/run/onward.sock"),
        ("10.0.0.1", ["198.51.100.7, 203.0.113.9"], "203.0.113.9"),  # the first was made up by the client
        ("10.0.0.1", ["198.51.100.7", "203.0.113.9"], "203.0.113.9"),  # the same in two headers
        ("10.0.0.1", ["198.51.100.7, 203.0.113.9, 192.0.2.1,10.9.9.9"], "203.0.113.9"),
        ("10.0.0.1", ["10.0.0.5, 10.0.0.6"], "10.0.0.5"),  # a client inside the trusted network
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", ["2001:DB8:0::1"], "2001:db8::1"),
        ("fd00::1", ["2001:db8::1"], "2001:db8::1"),
        ("::ffff:10.0.0.1", ["::ffff:203.0.113.9"], "203.0.113.9"),  # an IPv6 socket that accepts IPv4
        ("10.0.0.1", ["203.0.113.9, unknown"], "10.0.0.1"),  # only what follows the malformed one can be trusted
        ("10.0.0.1", ["unknown, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["203.0.113.9, _hidden, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["evil status=500"], "10.0.0.1"),
    ],
)
def test_the_client_is_the_rightmost_address_that_is_not_a_proxy(peer: str, headers: list[str], client: str) -> None:
    assert PROXIES.client(peer, headers) == client


def test_without_trusted_proxies_the_header_is_ignored() -> None:
    assert TrustedProxies().client("127.0.0.1", ["203.0.113.9"]) == "127.0.0.1"


def test_a_header_of_many_addresses_is_followed_only_so_far() -> None:
    hops = [f"10.0.{number // 256}.{number % 256}" for number in range(4_000)]
    assert PROXIES.client("10.0.0.1", [",".join(hops)]) == hops[-MAX_HOPS]
    exactly = [f"203.0.113.{number}" for number in (1, 2)] + hops[: MAX_HOPS - 1]
    assert PROXIES.client("10.0.0.1", [",".join(exactly)]) == "203.0.113.2"


@pytest.mark.parametrize(
    ("raw", "network"),
    [
        ("10.0.0.1", "10.0.0.1/32"),
        (" 10.0.0.0/8 ", "10.0.0.0/8"),
        ("fd00::/8", "fd00::/8"),
        ("::1", "::1/128"),
        ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
    ],
)
def test_a_proxy_is_an_address_or_a_network(raw: str, network: str) -> None:
    assert values.network(raw) == network


@pytest.mark.parametrize("raw", ["", "proxy.example", "10.0.0.1/8", "10.0.0.0/33", "10.0.0.1:80", "*"])
def test_anything_else_is_refused(raw: str) -> None:
    with pytest.raises(ValueError, match="must be an address or a network"):
        values.network(raw)


@in_loop
async def test_the_access_log_has_the_address_that_a_trusted_proxy_reports(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onward.access")
    app = App(FakeBackend(), settings(trusted_proxy=("192.0.2.7/32",)))
    untrusting = App(FakeBackend(), settings(trusted_proxy=("192.0.2.8/32",)))
    for each in (app, untrusting):
        await completion(each, headers={"x_forwarded_for": "198.51.100.7, 203.0.113.9"}).done()
    lines = [record.getMessage() for record in caplog.records if record.name == "onward.access"]
    assert [dict(pair.split("=") for pair in line.split(" "))["client"] for line in lines] == [
        "203.0.113.9",
        "192.0.2.7",
    ]


@in_loop
async def test_wrong_keys_are_slowed_by_the_address_behind_a_proxy() -> None:
    app = App(FakeBackend(), settings(trusted_proxy=("192.0.2.7/32",), api_key=("sk-right",)))

    async def status(client: str, key: str) -> int:
        call = Call(app, "GET", "/v1/models", authorization=f"Bearer {key}", x_forwarded_for=client)
        return (await call.done()).status

    slowed = app._authenticator._wrong_keys
    for _ in range(30):
        slowed.delay("203.0.113.9")
    assert await status("203.0.113.9", "sk-wrong") == 429
    assert await status("203.0.113.10", "sk-wrong") == 401
    assert await status("203.0.113.10", "sk-right") == 200


def test_uvicorn_believes_no_header_by_itself() -> None:
    app = App(FakeBackend(), settings())
    config = server_config(app)
    config.load()
    assert config.loaded_app is app
