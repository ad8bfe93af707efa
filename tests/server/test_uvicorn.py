"""What the server needs of uvicorn."""

from __future__ import annotations

import asyncio

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from onward.errors import SetupError
from onward.server.connection import UVICORN_HOOKS, Protocol, check_uvicorn
from onward.server.run import serve
from tests.server.fakes import FakeBackend, settings


def test_the_installed_uvicorn_has_every_hook() -> None:
    check_uvicorn()


@pytest.mark.parametrize("hook", UVICORN_HOOKS)
def test_an_uvicorn_without_a_hook_is_reported_before_anything_starts(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(HttpToolsProtocol, hook)
    monkeypatch.setattr(uvicorn, "__version__", "0.44.0")
    with pytest.raises(SetupError) as raised:
        serve(settings(), lambda *_: FakeBackend())
    assert str(raised.value) == (
        f"uvicorn 0.44.0 does not work with Onward: it has no HttpToolsProtocol.{hook}. "
        "Install a version that does, 0.45 or newer: pip install --upgrade 'uvicorn>=0.45'."
    )


def test_the_hooks_are_all_methods_that_are_overridden() -> None:
    own = Protocol.__mro__[: Protocol.__mro__.index(HttpToolsProtocol)]
    overridden = {name for one in own for name in vars(one) if name in vars(HttpToolsProtocol)}
    of_asyncio = set(dir(asyncio.Protocol))
    assert overridden - of_asyncio <= set(UVICORN_HOOKS)
