"""Warnings to clients: in a header of each response, and once in the log."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from onward.completions.request import CompletionRequest
from onward.server.app import make_app
from tests.server.fakes import Call, FakeAnswer, FakeBackend, in_loop, settings


class WarningBackend(FakeBackend):
    async def complete(self, request: CompletionRequest, *, client: str = "") -> FakeAnswer:
        answer = await super().complete(request, client=client)
        answer.warning = "" if request.prompts == ["fine"] else "Begin with 2."
        return answer


@in_loop
async def test_a_warning_is_a_header_and_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(WarningBackend(), settings())
    for stream in (False, True, False):
        body = json.dumps({"model": "m", "prompt": [5], "stream": stream}).encode()
        call = await Call(app, "POST", "/v1/completions", body).done()
        assert call.status == 200 and call.headers["onward-warning"] == "Begin with 2."
    fine = await Call(app, "POST", "/v1/completions", b'{"model": "m", "prompt": "fine"}').done()
    assert "onward-warning" not in fine.headers
    (record,) = [each for each in caplog.records if each.name == "onward.server" and each.levelno == logging.WARNING]
    assert record.getMessage().startswith("fake-model:1: Begin with 2.")


class SeveralModels(FakeBackend):
    def load(self) -> dict[str, Any]:
        return {"storyteller": None, "other": None}


TARGETS = [
    ("POST", "/tokenize", b'{"prompt": "hi"}'),
    ("POST", "/detokenize", b'{"tokens": [104]}'),
    ("GET", "/tokenizer_info", b""),
]


@pytest.mark.parametrize(("method", "path", "body"), TARGETS)
@in_loop
async def test_tokens_of_one_of_several_models_are_asked_for_by_name(method: str, path: str, body: bytes) -> None:
    app = make_app(SeveralModels(), settings())
    refused = await Call(app, method, path, body).done()
    assert refused.status == 400 and f"/m/storyteller{path}" in refused.json["error"]["message"]
    assert (await Call(app, method, f"/m/storyteller{path}", body).done()).status == 200
    alone = make_app(FakeBackend(), settings())
    assert (await Call(alone, method, path, body).done()).status == 200
    if method == "POST":
        named = json.dumps({**json.loads(body), "model": "storyteller"}).encode()
        assert (await Call(app, method, path, named).done()).status == 200
        other = await Call(app, method, f"/m/other{path}", named).done()
        assert other.status == 400 and "The path names the model 'other'" in other.json["error"]["message"]


@in_loop
async def test_completions_are_there_too_so_that_one_address_is_one_model() -> None:
    backend = FakeBackend()
    call = await Call(
        make_app(backend, settings()), "POST", "/m/storyteller/v1/completions", b'{"prompt": "hi"}'
    ).done()
    assert call.status == 200 and backend.requests[0].model == "storyteller"
