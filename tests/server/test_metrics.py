"""Metrics, and warnings of what a client probably did not intend."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

import onward
from onward.backends.base import Admit
from onward.completions.request import CompletionRequest
from onward.engine_load import ProcessUsage, RecoveryCounts
from onward.errors import EngineStopped, Overloaded
from onward.server.app import App
from tests.server.fakes import Call, FakeAnswer, FakeBackend, completion, in_loop, settings

MADE_UP = "made-up-name"


async def scrape(app: App) -> str:
    return (await Call(app, "GET", "/metrics").done()).body.decode()


REQUESTS = [
    ("POST", "/v1/completions", b'{"model": "made-up-name", "prompt": "x"}'),
    ("POST", "/v1/engines/made-up-name/completions", b'{"prompt": "x"}'),
    ("POST", "/tokenize", b'{"model": "made-up-name", "prompt": "x"}'),
    ("POST", "/detokenize", b'{"model": "made-up-name", "tokens": [1]}'),
    ("GET", "/tokenizer_info?model=made-up-name", b""),
    ("GET", "/v1/models/made-up-name", b""),
    ("GET", "/v1/engines/made-up-name", b""),
    ("GET", "/made-up-name", b""),
    ("MADE-UP-NAME", "/health", b""),
]


@pytest.mark.parametrize(("method", "target", "body"), REQUESTS)
@pytest.mark.parametrize("error", [None, Overloaded()])
@in_loop
async def test_no_label_contains_a_name_that_a_client_made_up(
    method: str, target: str, body: bytes, error: Exception | None
) -> None:
    backend = FakeBackend()
    backend.error_to_raise = error
    app = App(backend, settings())
    await Call(app, method, target, body).done()
    text = await scrape(app)
    assert MADE_UP not in text.lower()
    assert len(re.findall("^onward_requests_total", text, re.MULTILINE)) == 1


@pytest.mark.parametrize(("error", "reason"), [(Overloaded(), "overloaded"), (EngineStopped(), "stopped")])
@in_loop
async def test_refused_completions_are_counted_by_model(error: Exception, reason: str) -> None:
    backend = FakeBackend()
    backend.error_to_raise = error
    app = App(backend, settings())
    for model in ("org/tiny", "org/tiny", MADE_UP):
        await completion(app, model=model).done()
    text = await scrape(app)
    assert f'onward_completions_refused_total{{model="org/tiny",reason="{reason}"}} 2.0' in text
    assert f'onward_completions_refused_total{{model="",reason="{reason}"}} 1.0' in text
    assert 'onward_requests_total{model="org/tiny",route="/v1/completions",status="503"} 2.0' in text


@in_loop
async def test_metrics_contain_the_version_and_the_process() -> None:
    text = await scrape(App(FakeBackend(), settings()))
    assert f'onward_build_info{{version="{onward.__version__}"}} 1.0' in text
    assert "process_resident_memory_bytes" in text
    assert "process_cpu_seconds_total" in text


@in_loop
async def test_only_counters_end_in_total_and_created_series_are_off() -> None:
    app = App(FakeBackend(), settings())
    await completion(app).done()
    text = await scrape(app)
    for family in text_string_to_metric_families(text):
        assert not family.name.endswith("_created"), family.name
        for one in family.samples:
            assert one.name.endswith("_total") == (family.type == "counter"), one.name


@in_loop
async def test_draft_tokens_are_counted_by_source_and_outcome_from_the_start() -> None:
    text = await scrape(App(FakeBackend(), settings()))
    counted = re.findall("^onward_draft_tokens_total{(.*)} (.*)$", text, re.MULTILINE)
    assert counted == [
        (f'model="fake-model:1",outcome="{outcome}",source="{source}"', value)
        for source, outcome, value in (
            ("prediction", "accepted", "5.0"),
            ("prediction", "rejected", "0.0"),
            ("lookup", "accepted", "0.0"),
            ("lookup", "rejected", "2.0"),
            ("grammar", "accepted", "0.0"),
            ("grammar", "rejected", "0.0"),
            ("model", "accepted", "0.0"),
            ("model", "rejected", "0.0"),
        )
    ]


@in_loop
async def test_an_engine_process_has_memory_and_processor_time_of_its_own() -> None:
    backend = FakeBackend()
    pattern = re.compile("^onward_engine_process_(.*){(.*)} (.*)$", re.MULTILINE)
    assert not pattern.findall(await scrape(App(backend, settings()))), "the engine is a thread, or not running"
    backend.process = ProcessUsage(2.5, 3 * 2**20)
    assert pattern.findall(await scrape(App(backend, settings()))) == [
        ("cpu_seconds_total", 'model="fake-model:1"', "2.5"),
        ("resident_memory_bytes", 'model="fake-model:1"', "3.145728e+06"),
    ]


@in_loop
async def test_recoveries_are_counted_by_reason_from_the_start() -> None:
    backend = FakeBackend()
    backend.recoveries = RecoveryCounts(4, 3, 2, num_recoveries=6, num_resumed_requests=9, seconds=1.5)
    text = await scrape(App(backend, settings()))
    names = "restarts_total|resumed_requests_total|recovery_seconds.*"
    counted = re.findall(f"^onward_engine_(?:{names}){{(.*)}} (.*)$", text, re.MULTILINE)
    model = 'model="fake-model:1"'
    assert counted == [
        (f'{model},reason="crash"', "4.0"),
        (f'{model},reason="hang"', "3.0"),
        (f'{model},reason="start"', "2.0"),
        (model, "9.0"),
        (model, "6.0"),
        (model, "1.5"),
    ]
    assert f"onward_engine_poisoned_requests_total{{{model}}} 0.0" in text


class WarningBackend(FakeBackend):
    async def complete(self, request: CompletionRequest, *, client: str = "", admit: Admit | None = None) -> FakeAnswer:
        answer = await super().complete(request, client=client, admit=admit)
        answer.warning = "" if request.prompts == ["fine"] else self.warning
        return answer

    warning = "Begin with 2."


@in_loop
async def test_a_warning_is_a_header_and_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = App(WarningBackend(), settings())
    for stream in (False, True, False):
        body = json.dumps({"model": "m", "prompt": [5], "stream": stream}).encode()
        call = await Call(app, "POST", "/v1/completions", body).done()
        assert call.status == 200 and call.headers["onward-warning"] == "Begin with 2."
    fine = await Call(app, "POST", "/v1/completions", b'{"model": "m", "prompt": "fine"}').done()
    assert "onward-warning" not in fine.headers
    (record,) = [each for each in caplog.records if each.name == "onward.server" and each.levelno == logging.WARNING]
    assert record.getMessage().startswith("fake-model:1: Begin with 2.")


@in_loop
async def test_a_warning_stays_one_header_whatever_it_quotes() -> None:
    backend = WarningBackend()
    backend.warning = "Begin with '<\uff5cbegin\u2581of\uff5c>'.\r\nset-cookie: é=1"
    call = await Call(App(backend, settings()), "POST", "/v1/completions", b'{"model": "m", "prompt": [5]}').done()
    assert call.status == 200 and "set-cookie" not in call.headers
    (value,) = [value for name, value in call.sent[0]["headers"] if name == b"onward-warning"]
    assert value == rb"Begin with '<\uff5cbegin\u2581of\uff5c>'.\r\nset-cookie: \xe9=1"


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
    app = App(SeveralModels(), settings())
    refused = await Call(app, method, path, body).done()
    assert refused.status == 400 and f"/m/storyteller{path}" in refused.json["error"]["message"]
    assert (await Call(app, method, f"/m/storyteller{path}", body).done()).status == 200
    alone = App(FakeBackend(), settings())
    assert (await Call(alone, method, path, body).done()).status == 200
    if method == "POST":
        named = json.dumps({**json.loads(body), "model": "storyteller"}).encode()
        assert (await Call(app, method, path, named).done()).status == 200
        other = await Call(app, method, f"/m/other{path}", named).done()
        assert other.status == 400 and "The path names the model 'other'" in other.json["error"]["message"]


@in_loop
async def test_a_completion_below_the_path_of_a_model_is_that_models() -> None:
    backend = FakeBackend()
    call = await Call(App(backend, settings()), "POST", "/m/storyteller/v1/completions", b'{"prompt": "hi"}').done()
    assert call.status == 200 and backend.requests[0].model == "storyteller"
