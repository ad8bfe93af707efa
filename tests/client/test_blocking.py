"""The Python API, in process, on the toy model: the synchronous and the asynchronous one return the same."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onward
from onward.api.openai.parameters import BY_NAME, PARAMETERS
from onward.api.openai.response import Completion
from onward.api.request_schema import parameter_schema
from onward.client import CreateParams, Prediction, PredictionPart, StreamOptions
from onward.engine.step import Engine
from onward.errors import EngineStopped, InvalidRequest, ModelNotFound, OnwardError, SetupError
from onward.sampling import sampler

from .. import threads
from ..engine.harness import slow_down
from ..toy_backend import toy_engine

Ask = Callable[..., Any]
"""Sends one request: returns the completion, or a list of the chunks of a stream."""


def ask_blocking(**params: Any) -> Any:
    with onward.Onward("toy") as client:
        made = client.completions.create(**params)
        return list(made) if params.get("stream") else made


def ask_awaiting(**params: Any) -> Any:
    async def ask() -> Any:
        async with onward.AsyncOnward("toy") as client:
            made = await client.completions.create(**params)
            return [chunk async for chunk in made] if params.get("stream") else made

    return asyncio.run(ask())


both = pytest.mark.parametrize("ask", [ask_blocking, ask_awaiting], ids=["sync", "async"])


@both
def test_a_completion_has_the_shape_of_the_api(ask: Ask) -> None:
    completion = ask(prompt="once upon a time", max_tokens=4, seed=1, n=2, logprobs=1)
    assert isinstance(completion, Completion)
    assert completion.object == "text_completion" and completion.model == "toy"
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert completion.usage.completion_tokens <= 8
    assert json.loads(completion.to_json()) == completion.to_dict() == completion.model_dump()
    assert list(completion.to_dict())[:3] == ["id", "object", "created"]


@both
def test_a_stream_folds_to_the_completion(ask: Ask) -> None:
    whole = ask(prompt="once upon a time", seed=1)
    chunks = ask(prompt="once upon a time", seed=1, stream=True, stream_options={"include_usage": True})
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None and chunk.to_dict()["usage"] is None for chunk in chunks[:-1])
    for chunk in ask(prompt="once upon a time", seed=1, stream=True):
        assert chunk.usage is None and "usage" not in chunk.to_dict()


@both
def test_what_was_not_asked_for_is_none_and_not_on_the_wire(ask: Ask) -> None:
    plain = ask(prompt="a", max_tokens=2)
    asked = ask(prompt="a", max_tokens=2, prompt_logprobs=1, return_token_ids=True, ignore_eos=True)
    names = ("token_ids", "prompt_token_ids", "prompt_logprobs")
    assert [getattr(plain.choices[0], name) for name in names] == [None, None, None]
    assert list(plain.choices[0].to_dict()) == ["text", "index", "logprobs", "finish_reason"]
    assert list(asked.choices[0].to_dict()) == ["text", "index", "logprobs", "finish_reason", *names]
    assert len(asked.choices[0].token_ids) == 2


@both
def test_a_bad_parameter_is_refused_in_the_words_of_the_api(ask: Ask) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ask(prompt="x", temperature=3)
    assert (refused.value.status, refused.value.param) == (400, "temperature")
    with pytest.raises(InvalidRequest, match="Unrecognized request argument supplied: nonsense"):
        ask(prompt="x", nonsense=1)


@both
def test_a_prediction_changes_only_the_counts_in_usage(ask: Ask) -> None:
    asked = {"prompt": "once upon a time", "seed": 1, "max_tokens": 300, "ignore_eos": True}
    plain = ask(**asked)
    for content in (plain.choices[0].text, [{"type": "text", "text": plain.choices[0].text}]):
        predicted = ask(**asked, prediction={"type": "content", "content": content})
        assert predicted.choices == plain.choices
        assert predicted.usage.completion_tokens_details.accepted_prediction_tokens > 0


def ask_blocking_raw(**params: Any) -> Any:
    with onward.Onward("toy") as client:
        raw = client.completions.with_raw_response.create(**params)
        made = raw.parse()
        return raw.headers, list(made) if params.get("stream") else made


def ask_awaiting_raw(**params: Any) -> Any:
    async def ask() -> Any:
        async with onward.AsyncOnward("toy") as client:
            raw = await client.completions.with_raw_response.create(**params)
            made = raw.parse()
            return raw.headers, [chunk async for chunk in made] if params.get("stream") else made

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("ask", "ask_raw"), [(ask_blocking, ask_blocking_raw), (ask_awaiting, ask_awaiting_raw)], ids=["sync", "async"]
)
def test_a_seed_that_was_drawn_is_a_header_that_computes_the_answer_again(ask: Ask, ask_raw: Ask) -> None:
    asked: Any = {"prompt": ["once", "once"], "n": 2, "max_tokens": 12, "ignore_eos": True}
    headers, first = ask_raw(**asked)
    assert list(headers) == ["onward-seed"] and len({choice.text for choice in first.choices}) > 1
    assert ask(**asked, extra_headers={"Onward-Seed": headers["onward-seed"]}).choices == first.choices
    again, chunks = ask_raw(**asked, extra_headers=headers, stream=True)
    texts = ["".join(each.text for chunk in chunks for each in chunk.choices if each.index == i) for i in range(4)]
    assert again == headers and texts == [choice.text for choice in first.choices]
    assert ask_raw(**asked, seed=1)[0] == {}
    number = int(headers["onward-seed"])
    assert ask(**asked, extra_headers={"onward-seed": number}).choices == first.choices
    with pytest.raises(InvalidRequest, match="The header onward-seed is 'None'"):
        ask(**asked, extra_headers={"onward-seed": None})
    with pytest.raises(InvalidRequest, match="leave out the header onward-seed, or the seed"):
        ask(**asked, seed=1, extra_headers=headers)
    with pytest.raises(InvalidRequest, match="extra_headers has x-other: in this process there is only"):
        ask(**asked, extra_headers={"X-Other": "1", **headers})


@both
def test_another_model_is_not_found(ask: Ask) -> None:
    with pytest.raises(ModelNotFound):
        ask(prompt="x", model="curie")


def test_leaving_a_stream_cancels_its_request() -> None:
    with onward.Onward("toy") as client:
        for _ in client.completions.create(prompt="x", max_tokens=2000, ignore_eos=True, stream=True):
            break
        with client.completions.create(prompt="x", max_tokens=2000, ignore_eos=True, stream=True) as stream:
            next(stream)
        backend = client._client._backend
        for _ in range(500):
            if toy_engine(backend).idle:
                break
            client.completions.create(prompt="x", max_tokens=1)
        assert not backend.served["toy"].answers


def test_iteration_can_continue_after_a_break() -> None:
    with onward.Onward("toy") as client:
        stream = client.completions.create(prompt="x", max_tokens=50, ignore_eos=True, stream=True)
        first = next(iter(stream))
        for _ in stream:
            break
        assert first.choices and len(list(stream)) == 48


LONG: Any = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True}


def idle_soon(engine: Engine) -> bool:
    """Return whether the engine becomes idle long before `LONG` would end by itself, counted in steps: `slow_down`
    gives this thread time for many looks at each."""
    while not engine.idle and engine.counters.num_steps < LONG["max_tokens"] // 2:
        time.sleep(0.001)
    return engine.idle


@pytest.mark.parametrize("read", [0, 1])
def test_dropping_a_stream_cancels_its_request_even_before_its_first_chunk(read: int) -> None:
    with onward.Onward("toy") as client:
        backend = client._client._backend
        served = backend.served["toy"]
        slow_down(toy_engine(backend))
        stream = client.completions.create(**LONG)
        for _ in range(read):
            next(stream)
        assert served.answers
        del stream
        assert idle_soon(toy_engine(backend)) and not served.answers


@pytest.mark.parametrize("read", [0, 1])
def test_dropping_a_stream_on_an_event_loop_cancels_its_request(read: int) -> None:
    async def ask() -> None:
        async with onward.AsyncOnward("toy") as client:
            backend = client._backend
            served = backend.served["toy"]
            slow_down(toy_engine(backend))
            stream = await client.completions.create(**LONG)
            for _ in range(read):
                await anext(stream)
            assert served.answers
            del stream
            assert idle_soon(toy_engine(backend)) and not served.answers

    asyncio.run(ask())


def test_a_stream_that_is_kept_continues_and_dropping_it_after_its_end_cancels_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with onward.Onward("toy") as client:
        cancelled: list[int] = []
        monkeypatch.setattr(client._client._backend.served["toy"].engine, "cancel", cancelled.append)
        stream = client.completions.create(prompt="x", max_tokens=20, ignore_eos=True, stream=True)
        gc.collect()
        assert len(list(stream)) == 20
        del stream
        gc.collect()
    assert not cancelled


def test_several_threads_may_ask_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with onward.Onward("toy") as client, ThreadPoolExecutor(8) as pool:

        def ask(seed: int) -> str:
            return client.completions.create(prompt="x", seed=seed, max_tokens=9).choices[0].text

        texts = list(pool.map(ask, [1, 2, 3, 1, 2, 3, 1, 2, 3]))
    assert texts[:3] == texts[3:6] == texts[6:]
    assert len(set(texts)) == 3


def test_closing_twice_is_allowed_and_an_unknown_model_is_explained(tmp_path: Path) -> None:
    client = onward.Onward("toy")
    client.close()
    client.close()
    with pytest.raises(SetupError, match="storyteller"):
        onward.Onward("storyteler")


def test_a_closed_client_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "MIN_LOGITS_PER_THREAD", 1)
    before = threads.running()
    client = onward.Onward("toy", threads=2)
    client.completions.create(prompt="x", n=4, max_tokens=4)
    assert any(thread.name.startswith("onward-sampling") for thread in threads.running() - before)
    client.close()
    assert threads.running() <= before


def test_closing_a_client_ends_its_streams_and_later_calls_raise() -> None:
    client = onward.Onward("toy")
    stream = client.completions.create(prompt="x", max_tokens=2000, ignore_eos=True, stream=True)
    next(stream)
    ended = threading.Event()

    def read() -> None:
        try:
            for _ in stream:
                pass
        except OnwardError:
            pass
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    client.close()
    assert ended.wait(60)
    with pytest.raises(EngineStopped, match="client is closed"):
        client.completions.create(prompt="x")
    stream.close()


@pytest.mark.parametrize(
    "options", [{"precision": "sloppy"}, {"max_rows": 0}, {"threads": -1}, {"kv_memory": "4 apples"}, {"thread": 4}]
)
def test_bad_options_are_refused_in_the_words_of_the_settings(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(SetupError, match=name):
        onward.Onward("toy", **options)


def test_options_may_be_written_as_in_a_settings_file() -> None:
    onward.Onward("toy", kv_memory="64MB", max_rows=4, prefix_cache=False).close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"modle": "toy"}, r"'modle' is not a setting; did you mean 'model'\?"),
        ({"base_url": "http://x"}, r"'base_url' is not a setting. The settings are: model, alias, "),
        ({"port": 9}, "'port' only affects `onward serve`: remove it from the keyword arguments"),
        ({"api_key": "x"}, "'api_key' only affects `onward serve`"),
        ({"access_log": False}, "'access_log' only affects `onward serve`"),
        ({"profile": "strict"}, "'profile' only affects `onward serve`"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words) as raised:
        onward.Onward("toy", **options)
    assert "port" not in str(raised.value).partition("The settings are")[2]


def test_public_names_are_listed() -> None:
    assert {"Onward", "AsyncOnward", "__version__", "errors"} <= set(dir(onward))


def test_keyword_arguments_are_those_of_the_parameter_table() -> None:
    """Law 7: the keyword arguments are exactly the parameters of the table."""
    public = {row.name for row in PARAMETERS if not row.dialect and row.kind != "link"} - {"stream"}
    assert set(typing.get_type_hints(CreateParams)) == public
    prediction = parameter_schema(BY_NAME["prediction"])
    part = prediction["properties"]["content"]["anyOf"][1]["items"]
    for declared, schema in ((Prediction, prediction), (PredictionPart, part)):
        assert set(typing.get_type_hints(declared)) == set(schema["properties"]) == declared.__required_keys__
    (options,) = (row for row in PARAMETERS if row.name == "stream_options")
    assert set(typing.get_type_hints(StreamOptions)) == {row.name for row in options.inner}


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("last", ["print(next(stream).object)", "print('text_completion')"])
def test_a_program_may_end_while_a_stream_runs(last: str) -> None:
    program = f"""
import onward
client = onward.Onward("storyteller", kv_memory=100_000_000)
stream = client.completions.create(prompt="Once", max_tokens=900, n=8, stream=True, ignore_eos=True)
{last}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "text_completion\n", "")
