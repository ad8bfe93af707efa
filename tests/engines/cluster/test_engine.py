"""The engine client of a cluster, over replicas in this process: nothing is lost, whatever happens to them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.errors import openai_words
from onward.api.openai.reply import fold_whole
from onward.api.openai.response import Completion
from onward.backends.embedded import EmbeddedBackend
from onward.completions.plan import ServedModel
from onward.engine.client import EngineState
from onward.engine_load import EngineCounts
from onward.engines.cluster import channels, flight
from onward.engines.cluster import replica as replica_module
from onward.engines.cluster.engine import ClusterEngine
from onward.engines.cluster.flight import GROUP_CHOICES, POLICY
from onward.engines.cluster.members import Members
from onward.errors import ApiError, EngineStopped
from onward.model_files.toy import ToyTokenizer
from tests.engines.cluster.local_transport import VOCABULARY, LocalReplica, LocalTransport
from tests.examples import slow_but
from tests.toy_backend import ask, backend_of
from tests.waiting import PATIENCE_SECONDS, until

REQUESTS: list[dict[str, Any]] = [
    {"prompt": "once", "max_tokens": 60, "seed": 1},
    {"prompt": "twice", "max_tokens": 40, "seed": 2, "n": 3, "logprobs": 2},
    {"prompt": "a b c", "max_tokens": 30, "temperature": 0, "echo": True, "logprobs": 1},
    {"prompt": ["x", "y", "x y"], "max_tokens": 25, "seed": 4, "best_of": 3, "n": 2},
    {"prompt": "stop", "max_tokens": 80, "seed": 5, "stop": ["e", "a"]},
    {"prompt": "penalties", "max_tokens": 50, "seed": 6, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"prompt": [1, 2, 3, 4] * 30, "max_tokens": 40, "seed": 7, "min_p": 0.05},
    {"prompt": "score", "max_tokens": 0, "echo": True, "logprobs": 3},
]


@pytest.fixture(autouse=True)
def small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams have many items, so that replicas are lost between many of them."""
    monkeypatch.setattr(replica_module, "FRAME_SECONDS", 0.002)
    monkeypatch.setattr(replica_module, "URGENT_SECONDS", 0.001)


@asynccontextmanager
async def cluster(
    *replicas: LocalReplica, wait_seconds: float = 30.0
) -> AsyncIterator[tuple[EmbeddedBackend, LocalTransport, ClusterEngine]]:
    """A backend over replicas. At the end no answer, no call and no block may be left (law 4)."""
    tokenizer, transport = ToyTokenizer(), LocalTransport(*replicas)
    info = replicas[0].info
    client = ClusterEngine("toy", transport, info, Members(VOCABULARY, info.context_length), wait_seconds)
    backend = backend_of(client, ServedModel.create("toy", tokenizer, info.vocab_size, info.context_length))
    try:
        yield backend, transport, client
        engines = [each.thread.engine for each in transport.replicas.values()]
        await until(lambda: not client._flights and all(engine.idle for engine in engines))
        assert not backend.served["toy"].answers
        for replica in transport.replicas.values():
            assert replica.thread.engine.idle
            replica.thread.engine.check()
            assert replica.thread.engine.cache.pool.num_used == 0
            assert client._placement.load(replica.name) == 0
    finally:
        await backend.aclose()


async def complete(backend: EmbeddedBackend, **fields: Any) -> Completion:
    request = check_request({"model": "toy", **fields})
    with openai_words():
        return await fold_whole(await backend.complete(request), request)


def bytes_of(completion: Completion) -> list[Any]:
    """The fields that must not depend on which engine computes them."""
    assert completion.usage is not None
    return [completion.choices, completion.usage.prompt_tokens, completion.usage.completion_tokens]


@pytest.fixture(scope="module")
def expected() -> list[list[Any]]:
    """The answer of a single process."""
    return [bytes_of(ask(**fields)) for fields in REQUESTS]


def test_law_2_a_cluster_returns_the_bytes_of_one_process(expected: list[list[Any]]) -> None:
    async def run() -> None:
        async with cluster(LocalReplica("a"), LocalReplica("b")) as (backend, transport, _):
            found = await asyncio.gather(*(complete(backend, **fields) for fields in REQUESTS))
            assert [bytes_of(each) for each in found] == expected
            assert {each.system_fingerprint for each in found} == {"fp_toy"}
            assert set(transport.calls) <= {"a", "b"}

    asyncio.run(run())


@pytest.mark.parametrize("seed", slow_but([0, 1], range(4)))
def test_law_2_replicas_that_die_change_no_byte(seed: int, expected: list[list[Any]]) -> None:
    async def run() -> None:
        draw = random.Random(seed)
        names = iter(f"replica-{index}" for index in range(100))
        first = [LocalReplica(next(names), dies_after=draw.randrange(6), is_slow=True) for _ in range(3)]
        async with cluster(*first) as (backend, transport, client):

            async def replace_the_dead() -> None:
                while True:
                    await asyncio.sleep(0.01)
                    while len(transport.replicas) < 3:
                        transport.add(LocalReplica(next(names), dies_after=draw.randrange(20, 80), is_slow=True))

            replacing = asyncio.create_task(replace_the_dead())
            found = await asyncio.gather(*(complete(backend, **fields) for fields in REQUESTS))
            replacing.cancel()
            assert [bytes_of(each) for each in found] == expected
            assert client.load.recoveries.num_resumed_requests > 0
            assert client.load.recoveries.num_poisoned_requests == 0

    asyncio.run(run())


def test_a_job_that_ends_every_replica_is_ended_itself() -> None:
    async def run() -> None:
        async with cluster(*(LocalReplica(str(index), dies_after=-1) for index in range(3 * POLICY.max_strikes))) as (
            backend,
            transport,
            client,
        ):
            for replica in transport.replicas.values():
                replica.lost.set()  # they die when a call reaches them
            with pytest.raises(ApiError, match="stopped repeatedly"):
                await complete(backend, prompt="poison", max_tokens=5)
            assert len(transport.calls) == POLICY.max_strikes
            assert client.load.recoveries.num_poisoned_requests == 1
            for replica in transport.replicas.values():
                replica.lost.clear()
            assert (await complete(backend, prompt="fine", max_tokens=5)).choices

    asyncio.run(run())


def test_a_replica_that_falls_silent_loses_its_requests_and_gets_no_new_ones(
    monkeypatch: pytest.MonkeyPatch, expected: list[list[Any]]
) -> None:
    """Its connection stays open, and nothing arrives."""
    monkeypatch.setattr(channels, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(replica_module, "HEARTBEAT_SECONDS", 0.02)

    async def run() -> None:
        async with cluster(LocalReplica("a", is_slow=True), LocalReplica("b", is_slow=True)) as (backend, transport, _):
            running = asyncio.create_task(complete(backend, **REQUESTS[0]))
            await until(lambda: transport.calls)
            silent = transport.calls[0]
            transport.replicas[silent].is_connected.clear()
            assert bytes_of(await running) == expected[0]
            await until(lambda: transport.channels.silent == (silent,))  # the other one may have been late, too
            monkeypatch.setattr(channels, "TICK_SECONDS", PATIENCE_SECONDS)
            first = len(transport.calls)
            for number in range(6):
                await complete(backend, prompt=f"number {number}", max_tokens=3)
            assert silent not in transport.calls[first:]
            transport.replicas[silent].is_connected.set()
            await until(lambda: not transport.channels.silent)

    asyncio.run(run())


def test_a_replica_that_died_gets_no_new_requests_before_the_cluster_has_noticed(
    monkeypatch: pytest.MonkeyPatch, expected: list[list[Any]]
) -> None:
    async def run() -> None:
        replicas = [LocalReplica(name, is_slow=True) for name in "abc"]
        async with cluster(*replicas) as (backend, transport, _):
            running = asyncio.create_task(complete(backend, **REQUESTS[0]))
            await until(lambda: transport.calls)
            dead = transport.calls[0]
            transport.kill(dead, reports=False)
            assert bytes_of(await running) == expected[0]
            first = len(transport.calls)
            for number in range(6):
                await complete(backend, prompt=f"number {number}", max_tokens=3)
            assert dead not in transport.calls[first:] and transport.silent == (dead,)
            monkeypatch.setattr(channels, "LOST_SECONDS", 0.0)
            assert not transport.silent

    asyncio.run(run())


def test_a_request_that_no_replica_answers_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(flight, "POLICY", replace(POLICY, max_losses=3))

    async def run() -> None:
        async with cluster(LocalReplica("a")) as (backend, transport, client):
            transport.replicas["a"].is_connected.clear()
            with pytest.raises(EngineStopped):
                await complete(backend, prompt="x", max_tokens=3)
            assert transport.calls == ["a"] * 3
            assert client.load.recoveries.num_crashes == 0  # it may only be disconnected
            monkeypatch.setattr(channels, "TICK_SECONDS", PATIENCE_SECONDS)  # a slow machine must not count as silent
            transport.replicas["a"].is_connected.set()
            await until(lambda: not transport.channels.silent)
            assert (await complete(backend, prompt="x", max_tokens=3)).choices

    asyncio.run(run())


def test_a_client_that_leaves_ends_the_work_at_the_replica() -> None:
    async def run() -> None:
        async with cluster(LocalReplica("a", is_slow=True)) as (backend, transport, client):
            answer = await backend.complete(check_request({"model": "toy", "prompt": "x", "max_tokens": 1500, "n": 2}))
            async for _ in answer:
                break
            await answer.aclose()
            await until(lambda: transport.replicas["a"].thread.engine.idle)
            assert not client._flights
            assert transport.replicas["a"].thread.load.num_decode_tokens < 2900

    asyncio.run(run())


def test_jobs_wait_for_a_replica_with_their_fingerprint() -> None:
    """A rolling update: what has begun under one fingerprint is never resumed under another."""

    async def run() -> None:
        old = LocalReplica("old", dies_after=3, is_slow=True)
        async with cluster(old, wait_seconds=0.3) as (backend, transport, client):
            running = asyncio.create_task(complete(backend, prompt="x", max_tokens=1500, seed=1, ignore_eos=True))
            await until(lambda: transport.calls)
            transport.add(LocalReplica("new", fingerprint="fp_new", started=1.0))
            with pytest.raises(ApiError):
                await running
            assert client.info.fingerprint == "fp_new"
            completion = await complete(backend, prompt="x", max_tokens=5)
            assert completion.system_fingerprint == "fp_new"
            assert transport.calls[-1] == "new"

    asyncio.run(run())


def test_replicas_with_another_tokenizer_are_left_alone() -> None:
    async def run() -> None:
        async with cluster(LocalReplica("a")) as (backend, transport, client):
            transport.add(LocalReplica("other", vocabulary="another", fingerprint="fp_other", started=9.0))
            for number in range(8):
                await complete(backend, prompt=f"number {number}", max_tokens=3)
            assert set(transport.calls) == {"a"}
            assert client.info.fingerprint == "fp_toy"
            transport.kill("a")
            await until(lambda: client.state.status == "recovering")
            assert "another model" in (client.state.crash_reason or "")

    asyncio.run(run())


def test_without_replicas_requests_wait() -> None:
    async def run() -> None:
        async with cluster(LocalReplica("a")) as (backend, transport, client):
            transport.kill("a")
            waiting = asyncio.create_task(complete(backend, prompt="x", max_tokens=3))
            await until(lambda: client.state.status == "recovering")
            transport.add(LocalReplica("b"))
            assert (await waiting).choices
            assert client.state == EngineState(engines=EngineCounts(1, 1))

    asyncio.run(run())


def test_requests_that_have_waited_in_vain_are_refused() -> None:
    async def run() -> None:
        async with cluster(LocalReplica("a"), wait_seconds=0.05) as (backend, transport, _):
            transport.kill("a")
            with pytest.raises(EngineStopped):
                await complete(backend, prompt="x", max_tokens=3)
            await asyncio.sleep(0.1)
            with pytest.raises(EngineStopped):  # at once
                await backend.complete(check_request({"model": "toy", "prompt": "x"}))

    asyncio.run(run())


def test_large_batches_are_spread_and_prefixes_meet() -> None:
    async def run() -> None:
        replicas = [LocalReplica(name) for name in "abcd"]
        async with cluster(*replicas) as (backend, transport, client):
            prompts = [f"prompt {index}" for index in range(8 * GROUP_CHOICES)]
            await complete(backend, prompt=prompts, max_tokens=2)
            assert len(set(transport.calls)) == 4
            transport.calls.clear()
            shared = [7] * 96
            for index in range(6):
                await complete(backend, prompt=[*shared, index], max_tokens=2)
            assert len(set(transport.calls)) == 1
            transport.report()
            await until(lambda: client.load.num_cached_tokens >= 5 * 95)
            assert client.info.max_rows == 4 * 64

    asyncio.run(run())


def test_totals_of_replicas_that_are_gone_still_count() -> None:
    async def run() -> None:
        async with cluster(LocalReplica("a"), LocalReplica("b")) as (backend, transport, client):
            await complete(backend, prompt=["x", "y"], max_tokens=20, ignore_eos=True)
            transport.report()
            await until(lambda: client.load.num_decode_tokens >= 38)
            before = client.load.num_decode_tokens
            transport.kill(transport.calls[0])
            await until(lambda: client.state.engines in (EngineCounts(1, 1), EngineCounts(1, 2)))
            assert client.load.num_decode_tokens == before

    asyncio.run(run())


def test_a_filter_that_ends_a_choice_ends_it_at_the_replica() -> None:
    """What ends above the engine, here by being cancelled, reaches the replica."""

    async def run() -> None:
        async with cluster(LocalReplica("a", is_slow=True)) as (backend, transport, client):
            request = check_request({"model": "toy", "prompt": "x", "max_tokens": 300, "n": 2, "ignore_eos": True})
            answer = await backend.complete(request)
            job = next(iter(backend.served["toy"].answers))
            late: set[int] = set()
            async for deltas in answer:
                if transport.cancelled_choices:
                    late |= {delta.index for delta in deltas}
                else:
                    client.cancel_choice(job, 0)
                if any(delta.finish for delta in deltas):
                    break
            assert 1 in late
            assert transport.cancelled_choices == [(job, 0)]
            assert transport.replicas["a"].thread.load.num_decode_tokens < 560
            await answer.aclose()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_SECONDS))
