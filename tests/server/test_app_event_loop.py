"""Long work of the server runs off the event loop, short work on it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from onward.api import tokens
from onward.api.openai import routes as completions
from onward.server.app import App
from tests.server.fakes import Call, FakeBackend, completion, in_loop, settings


class Recorder:
    """Replaces a function and records on which threads it runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.on_loop: list[bool] = []
        self._function: Callable[..., Any] = getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.on_loop.append(threading.current_thread() is threading.main_thread())
        return self._function(*arguments, **named)


@in_loop
async def test_a_large_request_is_decoded_on_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch, completions, "decode_object")
    app = App(FakeBackend(), settings())
    for prompt in ([1] * 10, [1] * 100_000):
        assert (await completion(app, prompt=prompt).done()).status == 200
    assert recorder.on_loop == [True, False]


@in_loop
async def test_an_invalid_request_is_decoded_once_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch, completions, "decode_object")
    app = App(FakeBackend(), settings())
    errors = []
    for prompt in (["x"], ["x"] * 10_000):
        call = await completion(app, prompt=prompt, n=0).done()
        errors.append((call.status, call.error))
    assert errors[0] == errors[1] and errors[0][0] == 400
    assert recorder.on_loop == [True, False]


@in_loop
async def test_a_body_of_too_many_prompts_is_refused_as_it_is_counted() -> None:
    backend = FakeBackend()
    call = await completion(App(backend, settings(max_parallel=10)), prompt=[[1]] * 100_000).done()
    assert call.status == 400
    assert call.error["message"].startswith("The body of this request has more than 4176 strings, arrays and objects; ")
    assert not backend.requests


@pytest.mark.parametrize(
    ("path", "fields"),
    [("/tokenize", {"prompt": "x" * 100_000}), ("/detokenize", {"tokens": [1] * 100_000})],
)
@in_loop
async def test_a_large_body_of_the_tokenizer_routes_is_decoded_on_a_thread(
    path: str, fields: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(monkeypatch, tokens, "decode_object")
    app = App(FakeBackend(), settings())
    assert (await Call(app, "POST", path, json.dumps(fields).encode()).done()).status == 200
    assert recorder.on_loop == [False]
