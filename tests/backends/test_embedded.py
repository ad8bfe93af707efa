"""The embedded backend over an engine that is only a script: whatever implements EngineClient serves completions."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from onward.api.openai.choices import LogprobsBuilder
from onward.api.openai.decode import check_request
from onward.api.openai.reply import fold_whole
from onward.api.openai.response import Completion
from onward.backends.base import Backend
from onward.backends.embedded import EmbeddedBackend
from onward.completions.rejections import InvalidConstraint
from onward.completions.request import CompletionRequest
from onward.engine.client import EngineClient
from onward.engine.events import Decoded, EngineFinishReason, Event, Failed, Prefilled
from onward.engine.job import Job
from onward.engine.thread import EngineThread
from onward.errors import ApiError, EngineStopped, InvalidRequest, Overloaded, RequestCancelled, ServerError
from onward.model_files.toy import END, ToyTokenizer

from ..engine.harness import make_engine
from ..narrowing import logprobs_of
from .scripted_engine import ScriptedEngine, backend_over, decoding, endless, replaying, sampled

LOOP_CALLS = {"submit", "cancel", "cancel_choice", "state", "load"}
"""What the backend may use on an event loop: none of it waits for the engine."""


@asynccontextmanager
async def serving(engine: ScriptedEngine) -> AsyncIterator[EmbeddedBackend]:
    """A backend over the engine. Check at the end that it used only LOOP_CALLS on the event loop, that it started and
    stopped the engine once, and that no answer is left."""
    backend = await asyncio.to_thread(backend_over, engine, name="scripted")
    try:
        yield backend
        assert not backend.served["scripted"].answers
    finally:
        await backend.aclose()
    assert engine.loop_calls <= LOOP_CALLS
    assert (engine.num_starts, engine.num_stops) == (1, 1)


def complete(engine: ScriptedEngine, **fields: Any) -> Completion:
    """The completion of one request of a new backend over the engine."""

    async def ask() -> Completion:
        async with serving(engine) as backend:
            request = make_request(**fields)
            return await fold_whole(await backend.complete(request), request)

    return asyncio.run(ask())


def make_request(**fields: Any) -> CompletionRequest:
    return check_request({"model": "scripted", "prompt": "xyz", **fields})


# --- the two interfaces ------------------------------------------------------------------------------------------


def members(protocol: type) -> dict[str, Any]:
    return {name: member for name, member in vars(protocol).items() if not name.startswith("_")}


def check_implements(implementation: type, protocol: type) -> None:
    """Each member exists, takes the same parameters, and is awaitable or a property exactly if the protocol's is."""
    for name, declared in members(protocol).items():
        found = getattr(implementation, name)
        assert isinstance(found, property) == isinstance(declared, property), name
        if isinstance(declared, property):
            continue
        assert inspect.iscoroutinefunction(found) == inspect.iscoroutinefunction(declared), name
        assert list(inspect.signature(found).parameters) == list(inspect.signature(declared).parameters), name


@pytest.mark.parametrize("implementation", [EngineThread, ScriptedEngine])
def test_an_engine_client_has_the_members_of_its_protocol(implementation: type) -> None:
    assert set(members(EngineClient)) == {"start", "submit", "cancel", "cancel_choice", "stop", "info", "state", "load"}
    check_implements(implementation, EngineClient)


def test_the_embedded_backend_has_the_members_of_its_protocol() -> None:
    assert {"complete", "models", "health", "load", "tokenize", "aclose"} < set(members(Backend))
    check_implements(EmbeddedBackend, Backend)


def test_the_types_of_both_interfaces_are_checked() -> None:
    """By mypy, in these assignments."""
    clients: list[EngineClient] = [EngineThread(make_engine()), ScriptedEngine(decoding("a"))]
    backend: Backend = EmbeddedBackend({}, [], {})
    assert [client.state.status for client in clients] == ["running", "running"]
    assert backend.health().state == "ready" and backend.load() == {}


# --- completions -------------------------------------------------------------------------------------------------


def test_scripted_tokens_become_the_text_and_the_usage_of_a_completion() -> None:
    engine = ScriptedEngine(decoding("naïve", num_cached_tokens=2))
    completion = complete(engine, max_tokens=6)
    (choice,) = completion.choices
    assert (choice.text, choice.finish_reason) == ("naïve", "length")
    assert completion.system_fingerprint == "fp_scripted"
    assert completion.usage is not None and completion.usage.prompt_tokens_details is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, 6)
    assert completion.usage.prompt_tokens_details.cached_tokens == 2
    assert [job.prompt for job in engine.submitted] == [tuple(b"xyz")]
    assert engine.cancelled == [], "a choice that ended in the engine is not cancelled there"


def test_a_stop_string_that_the_engine_does_not_know_ends_the_choice_and_cancels_it_in_the_engine() -> None:
    engine = ScriptedEngine(decoding("one two three "))
    completion = complete(engine, max_tokens=2000, stop=["thr", "zzz"])
    (choice,) = completion.choices
    assert (choice.text, choice.finish_reason) == ("one two ", "stop")
    assert completion.usage is not None and completion.usage.completion_tokens < 20
    assert engine.cancelled_choices == [(engine.submitted[0].id, 0)]


def test_an_end_token_without_a_finish_reason_ends_the_choice() -> None:
    tokens = [sampled(ord(letter)) for letter in "hello"]
    engine = ScriptedEngine(replaying(tokens[:2], [*tokens[2:], sampled(END), sampled(ord("!"))]))
    completion = complete(engine, max_tokens=2000)
    (choice,) = completion.choices
    assert (choice.text, choice.finish_reason) == ("hello", "stop")
    assert completion.usage is not None and completion.usage.completion_tokens == 5
    assert engine.cancelled_choices == [(engine.submitted[0].id, 0)]


def test_a_choice_that_ends_before_the_others_is_cancelled_alone() -> None:
    engine = ScriptedEngine(decoding("a stop b", "never ends"))
    completion = complete(engine, n=2, max_tokens=30, stop=["stop"])
    assert [(choice.text, choice.finish_reason) for choice in completion.choices] == [
        ("a ", "stop"),
        ("never ends" * 3, "length"),
    ]
    assert engine.cancelled_choices == [(engine.submitted[0].id, 0)]
    assert engine.cancelled == []


def test_best_of_returns_the_candidate_with_the_highest_mean_log_probability() -> None:
    logprobs = [-2.0, -0.5, -1.0]

    def script(job: Job) -> Iterator[list[Event]]:
        yield [Prefilled(job.id, 0)]
        finishes: list[EngineFinishReason | None] = [None, None, "length"]
        for finish in finishes:
            yield [
                Decoded(job.id, choice, [sampled(97 + choice, logprob)], finish)
                for choice, logprob in enumerate(logprobs)
            ]

    engine = ScriptedEngine(script)
    completion = complete(engine, n=2, best_of=3, max_tokens=3)
    assert [(choice.index, choice.text) for choice in completion.choices] == [(0, "bbb"), (1, "ccc")]
    assert completion.usage is not None and completion.usage.completion_tokens == 9
    assert engine.submitted[0].num_choices == 3 and engine.submitted[0].sampling.logprobs == 0


def test_log_probabilities_of_tokens_and_of_an_echoed_prompt_are_the_engines() -> None:
    top = ((ord("b"), -0.25), (ord("c"), -1.5))

    def script(job: Job) -> Iterator[list[Event]]:
        yield [Prefilled(job.id, 0, [None, sampled(ord("y"), -3.0, top), sampled(ord("z"), -4.0, top)])]
        yield [Decoded(job.id, 0, [sampled(ord("b"), -0.25, top), sampled(ord("q"), -9.0, top)], "length")]

    completion = complete(ScriptedEngine(script), logprobs=2, echo=True, max_tokens=2)
    (choice,) = completion.choices
    logprobs = logprobs_of(choice)
    assert choice.text == "xyzbq"
    assert logprobs.tokens == ["x", "y", "z", "b", "q"]
    assert logprobs.token_logprobs == [None, -3.0, -4.0, -0.25, -9.0]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[-2:] == [{"b": -0.25, "c": -1.5}, {"b": -0.25, "c": -1.5, "q": -9.0}]


def test_a_long_prompts_log_probabilities_are_built_on_a_thread_and_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    on_loop: list[bool] = []
    build = LogprobsBuilder.prompt

    def recorded(*arguments: Any) -> Any:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return build(*arguments)

    def script(job: Job) -> Iterator[list[Event]]:
        scores = [None, *[sampled(ord("x"), -1.0, ((ord("x"), -1.0),))] * (len(job.prompt) - 1)]
        yield [Prefilled(job.id, 0, scores), Decoded(job.id, 0, [sampled(ord("a"), -2.0)], None)]
        yield [Decoded(job.id, 0, [sampled(ord("b"), -3.0)], None)]
        yield [Decoded(job.id, 0, [sampled(ord("c"), -4.0)], "length")]

    monkeypatch.setattr(LogprobsBuilder, "prompt", recorded)
    for num_tokens in (100, 1500):
        completion = complete(ScriptedEngine(script), prompt="x" * num_tokens, logprobs=20, echo=True, max_tokens=3)
        (choice,) = completion.choices
        assert choice.text == "x" * num_tokens + "abc"
        assert logprobs_of(choice).token_logprobs == [None, *[-1.0] * (num_tokens - 1), -2.0, -3.0, -4.0]
    assert on_loop == [True, False]


@pytest.mark.parametrize("has_process", [False, True])
def test_no_event_loop_waits_for_the_process_of_a_tokenizer(monkeypatch: pytest.MonkeyPatch, has_process: bool) -> None:
    on_loop: set[bool] = set()
    encode = ToyTokenizer.encode

    def recorded(tokenizer: ToyTokenizer, text: str, **given: Any) -> list[int]:
        on_loop.add(threading.current_thread() is threading.main_thread())
        return encode(tokenizer, text, **given)

    async def use() -> None:
        async with serving(ScriptedEngine(decoding("ab"))) as backend:
            on_loop.clear()
            await fold_whole(await backend.complete(request), request)
            await backend.tokenize(None, "x", False)

    request = make_request(prompt="x", max_tokens=2)
    monkeypatch.setattr(ToyTokenizer, "has_process", has_process)
    monkeypatch.setattr(ToyTokenizer, "encode", recorded)
    asyncio.run(use())
    assert on_loop == {not has_process}


def test_an_answer_that_is_closed_while_its_prompt_is_scored_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started, released = threading.Event(), threading.Event()

    def slow(*_: Any) -> None:
        started.set()
        assert released.wait(60)

    def script(job: Job) -> Iterator[list[Event]]:
        yield [Prefilled(job.id, 0, [None] * len(job.prompt))]
        yield [Decoded(job.id, 0, [sampled(ord("a"), -2.0)], "length")]

    async def leave() -> None:
        async with serving(ScriptedEngine(script)) as backend:
            request = make_request(prompt="x" * 1500, logprobs=20, echo=True, max_tokens=1)
            answer = await backend.complete(request)
            folding = asyncio.create_task(fold_whole(answer, request))
            assert await asyncio.to_thread(started.wait, 20)
            await answer.aclose()
            released.set()
            with pytest.raises(RequestCancelled):
                await folding

    monkeypatch.setattr(LogprobsBuilder, "prompt", slow)
    asyncio.run(leave())


def test_several_prompts_are_jobs_of_one_request() -> None:
    engine = ScriptedEngine(decoding("ab"))
    completion = complete(engine, prompt=["x", "yy"], max_tokens=2)
    assert [(choice.index, choice.text) for choice in completion.choices] == [(0, "ab"), (1, "ab")]
    assert completion.usage is not None and completion.usage.prompt_tokens == 3
    first, second = engine.submitted
    assert first.request == second.request and first.id != second.id


# --- cancellation, failure, snapshots ----------------------------------------------------------------------------


def test_a_closed_answer_is_cancelled_in_the_engine() -> None:
    async def leave() -> ScriptedEngine:
        engine = ScriptedEngine(endless)
        async with serving(engine) as backend:
            answer = await backend.complete(make_request(max_tokens=2000))
            async for _ in answer:
                await answer.aclose()
                break
            assert engine.cancelled == [engine.submitted[0].request]
        return engine

    asyncio.run(leave())


def test_closing_an_answer_in_another_task_raises_there() -> None:
    async def close() -> None:
        async with serving(ScriptedEngine(replaying())) as backend:
            answer = await backend.complete(make_request())
            waiting = asyncio.create_task(fold_whole(answer, make_request()))
            await asyncio.sleep(0)
            await answer.aclose()
            with pytest.raises(RequestCancelled):
                await waiting

    asyncio.run(close())


def test_a_crash_of_the_engine_fails_its_requests_and_the_health_of_the_backend() -> None:
    async def crash() -> None:
        engine = ScriptedEngine(endless)
        async with serving(engine) as backend:
            assert backend.health().state == "ready"
            answer = await backend.complete(make_request(max_tokens=2000))
            engine.crash("out of memory")
            with pytest.raises(ServerError) as failed:
                await fold_whole(answer, make_request())
            assert failed.value.headers["x-should-retry"] == "false"
            assert backend.health().state == "dead" and backend.health().models["scripted"].state == "dead"
            backend.drain()
            assert backend.health().state == "dead", "a drain does not hide it"

    asyncio.run(crash())


def test_a_backend_is_ready_when_all_its_models_are() -> None:
    async def recover() -> None:
        engine = ScriptedEngine(endless)
        async with serving(engine) as backend:
            engine.recover()
            health = backend.health()
            assert health.state == health.models["scripted"].state == "recovering"
            assert health.detail and health.models["scripted"].detail
            engine.crash("killed at last")

    asyncio.run(recover())


def test_a_poisoned_request_says_what_to_do_and_is_not_repeated() -> None:
    async def poison() -> None:
        engine = ScriptedEngine(lambda job: [[Failed(job.id, "poisoned", "engines were lost")]])
        async with serving(engine) as backend:
            with pytest.raises(ServerError, match="Do not send it again unchanged") as failed:
                await fold_whole(await backend.complete(make_request()), make_request())
            assert failed.value.headers["x-should-retry"] == "false"
            assert backend.health().state == "ready"

    asyncio.run(poison())


def test_a_grammar_whose_request_ends_engines_is_refused_by_name_and_not_tried_again() -> None:
    async def poison() -> None:
        submitted: list[Job] = []

        def script(job: Job) -> list[list[Event]]:
            submitted.append(job)
            return [[Failed(job.id, "poisoned", "engines were lost")]]

        async with serving(ScriptedEngine(script)) as backend:
            with pytest.raises(InvalidRequest, match="Invalid 'regex': the engine's process ended repeatedly"):
                await fold_whole(await backend.complete(make_request(regex="[a-c]+")), make_request())
            with pytest.raises(InvalidConstraint) as failed:
                await backend.complete(make_request(regex="[a-c]+"))
            assert failed.value.parameter == "regex" and "ended repeatedly" in failed.value.reason
            assert len(submitted) == 1
            with pytest.raises(InvalidRequest):
                await fold_whole(await backend.complete(make_request(regex="[a-d]+")), make_request())
            assert len(submitted) == 2

    asyncio.run(poison())


def test_requests_that_run_when_the_engine_is_stopped_fail_with_engine_stopped() -> None:
    async def stop() -> None:
        engine = ScriptedEngine(endless)
        async with serving(engine) as backend:
            answer = await backend.complete(make_request(max_tokens=2000))
            await asyncio.to_thread(engine.stop)
            engine.num_stops = 0
            with pytest.raises(EngineStopped):
                await fold_whole(answer, make_request())

    asyncio.run(stop())


@pytest.mark.parametrize("refusal", [Overloaded(retry_after=3), EngineStopped()])
def test_a_refused_submission_is_raised_and_leaves_no_answer(refusal: ApiError) -> None:
    async def submit() -> None:
        engine = ScriptedEngine(endless, refusal=refusal)
        async with serving(engine) as backend:
            with pytest.raises(type(refusal)) as raised:
                await backend.complete(make_request())
            assert raised.value is refusal
            assert engine.cancelled == []

    asyncio.run(submit())


def test_load_is_the_snapshot_that_the_engine_published_and_its_rows() -> None:
    async def look() -> None:
        engine = ScriptedEngine(endless)
        async with serving(engine) as backend:
            rows = engine.info.max_rows
            assert backend.load() == {"scripted": msgspec.structs.replace(engine.published_load, max_rows=rows)}
            assert engine.loop_calls == {"load"}

    asyncio.run(look())


def test_tokenizing_does_not_call_the_engine() -> None:
    async def tokenize() -> None:
        engine = ScriptedEngine(endless)
        async with serving(engine) as backend:
            tokens = await backend.tokenize(None, "once upon", add_special_tokens=True)
            assert b"".join(await backend.token_bytes("scripted", tokens)) == b"once upon"
            assert (await backend.tokenizer_info(None)).context_length == 2048
            assert backend.models()[0].id == "scripted"
            assert not engine.loop_calls

    asyncio.run(tokenize())


def test_a_drained_backend_refuses_requests_without_calling_the_engine() -> None:
    async def drain() -> None:
        engine = ScriptedEngine(decoding("ab"))
        async with serving(engine) as backend:
            running = await backend.complete(make_request(max_tokens=2))
            backend.drain()
            with pytest.raises(EngineStopped):
                await backend.complete(make_request())
            assert backend.health().state == "draining"
            assert (await fold_whole(running, make_request())).choices[0].text == "ab"
            assert len(engine.submitted) == 1

    asyncio.run(drain())


def test_a_scripted_engine_notices_a_call_on_an_event_loop() -> None:
    """The check of `serving` can fail: a `stop` on the loop would be among its calls."""

    async def stop_on_loop() -> set[str]:
        engine = ScriptedEngine(decoding("a"))
        engine.start(lambda events: None)
        engine.stop()
        return engine.loop_calls

    assert not asyncio.run(stop_on_loop()) <= LOOP_CALLS
