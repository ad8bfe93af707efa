"""A replica: calls that come in batches, and are cancelled one by one."""

from __future__ import annotations

import asyncio

import pytest

from onward.engine.job import Job
from onward.engines.cluster.deployment import CALLS, CALLS_PER_ROW
from onward.engines.cluster.messages import LoadReport, ReplicaRoute, encode
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules
from tests.engines.cluster.local_transport import LocalReplica
from tests.waiting import PATIENCE_SECONDS, until

ROUTE = ReplicaRoute("a", "face")


def call_of(tokens: int) -> bytes:
    return encode([Job(1, 1, (1, 2, 3), 1, tokens, SamplingParams(seed=1), TextRules(), frozenset())])


def stats(num_calls: int) -> dict[str, float]:
    """What a replica reports whose engine computes 64 sequences together."""
    return {CALLS: num_calls, CALLS_PER_ROW: num_calls / 64}


def test_a_batch_lasts_as_long_as_its_longest_call() -> None:
    """Ray, which only knows batches, can so drain a replica when all calls have ended."""

    async def run() -> None:
        local = LocalReplica("a", is_slow=True)
        replica = local.replica
        batch = asyncio.create_task(replica.run([(1, call_of(3)), (2, call_of(1500)), (3, call_of(3))], ROUTE))
        await until(lambda: replica.record_autoscaling_stats() == stats(3))
        await until(lambda: replica.record_autoscaling_stats() == stats(1))
        assert not batch.done()
        await replica.cancel([2], ROUTE)
        await batch
        await until(lambda: local.thread.engine.idle)
        assert local.thread.load.num_decode_tokens < 1_400
        reports = [LoadReport.decode(replica.record_routing_stats()) for _ in range(2)]
        assert [report.number for report in reports] == [1, 2]
        replica.stop()

    asyncio.run(run())


def test_a_call_that_was_cancelled_before_it_came_is_not_begun() -> None:
    async def run() -> None:
        replica = LocalReplica("a").replica
        await replica.cancel([1], ROUTE)
        await asyncio.wait_for(replica.run([(1, call_of(1500))], ROUTE), PATIENCE_SECONDS)
        assert replica.record_autoscaling_stats() == stats(0)
        replica.stop()

    asyncio.run(run())


def test_a_batch_that_is_torn_ends_its_calls() -> None:
    async def run() -> None:
        local = LocalReplica("a", is_slow=True)
        batch = asyncio.create_task(local.replica.run([(1, call_of(1500)), (2, call_of(1500))], ROUTE))
        await until(lambda: local.replica.record_autoscaling_stats() == stats(2))
        batch.cancel()
        await until(lambda: local.replica.record_autoscaling_stats() == stats(0))
        await until(lambda: local.thread.engine.idle)
        local.replica.stop()

    asyncio.run(run())


def test_what_is_for_another_replica_is_not_accepted() -> None:
    async def run() -> None:
        replica, elsewhere = LocalReplica("a").replica, ReplicaRoute("b", "face")
        with pytest.raises(LookupError):
            await replica.run([(1, call_of(3))], elsewhere)
        with pytest.raises(LookupError):
            await replica.cancel([1], elsewhere)
        with pytest.raises(LookupError):
            await anext(replica.listen(elsewhere))
        replica.stop()

    asyncio.run(run())
