"""Replicas in this process: a transport without Ray, whose replicas die when a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onward.engine.client import EngineInfo
from onward.engine.step import Engine
from onward.engine.thread import EngineThread
from onward.engine_load import EngineLoad
from onward.engines.cluster.channels import Channels
from onward.engines.cluster.members import Member
from onward.engines.cluster.messages import PROTOCOL, Calls, ReplicaInfo, ReplicaRoute, decode_frame
from onward.engines.cluster.replica import EngineReplica
from onward.engines.cluster.transport import OnMembers, ReplicaLost
from onward.model_files.toy import ToyTokenizer
from onward.runtimes.toy.model import ToyModel
from onward.sampling.sampler import Sampler

T = TypeVar("T")

VOCABULARY = "toy"


class SlowModel(ToyModel):
    def evaluate(self, *arguments: Any, **keywords: Any) -> Any:
        time.sleep(0.002)
        return super().evaluate(*arguments, **keywords)


@dataclass(eq=False)
class LocalReplica:
    """A replica over `engine`, or one on the toy model. `dies_after`: items of calls after which it dies by itself.
    `is_slow`: steps take two milliseconds, so that a test can act between them. `is_connected`: while it is
    cleared, nothing that the replica sends arrives."""

    name: str
    fingerprint: str = "fp_toy"
    vocabulary: str = VOCABULARY
    started: float = 0.0
    dies_after: int | None = None
    is_slow: bool = False
    engine: Any = None
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    is_connected: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.thread = self.engine or self._toy()
        info = ReplicaInfo(PROTOCOL, "toy", "toy", 1, self.vocabulary, self.thread.info, self.started)
        self.replica = EngineReplica(self.thread, info, name=self.name)
        self.is_connected.set()
        self.member = Member(self.name, ReplicaInfo.decode(info.encode()), EngineLoad())

    def _toy(self) -> EngineThread:
        model, tokenizer = SlowModel() if self.is_slow else ToyModel(), ToyTokenizer()
        engine = Engine(model, tokenizer, Sampler(model.vocab_size), load_tokenizer=lambda: tokenizer)
        return EngineThread(engine, name=self.name, fingerprint=self.fingerprint)

    @property
    def info(self) -> EngineInfo:
        info: EngineInfo = self.thread.info
        return info


class LocalTransport:
    """Implements `cluster.transport.Transport`. All replicas must be made on the event loop of a test, and are reached
    from that of the engine client: what crosses is bytes."""

    def __init__(self, *replicas: LocalReplica) -> None:
        self.replicas = {replica.name: replica for replica in replicas}
        self.calls: list[str] = []
        """The replica of each call, in order."""
        self.batches: list[tuple[str, int]] = []
        """The replica of each batch, and its size."""
        self.cancelled_choices: list[tuple[int, int]] = []
        self.channels = Channels(_Listener(self))
        self._num_reports = 0
        self._on_members: OnMembers = lambda members: None

    @property
    def silent(self) -> tuple[str, ...]:
        return self.channels.silent

    def watch(self, on_members: OnMembers) -> None:
        self._on_members = on_members
        self.report()

    def report(self) -> None:
        """Report the replicas that are left."""
        self._num_reports += 1
        members: Mapping[str, Member] = {
            name: Member(name, replica.member.info, replica.thread.load, self._num_reports)
            for name, replica in self.replicas.items()
        }
        self._on_members(members)

    def kill(self, name: str, *, reports: bool = True) -> None:
        """A replica is gone at once, with all that it computes."""
        replica = self.replicas.pop(name)
        replica.lost.set()
        replica.thread.stop()
        if reports:
            self.report()

    def add(self, replica: LocalReplica) -> None:
        self.replicas[replica.name] = replica
        self.report()

    def run(self, call: int, replica: str, payload: bytes) -> AsyncGenerator[bytes]:
        self.calls.append(replica)
        return self.channels.stream(call, replica, payload)

    async def cancel_choice(self, call: int, replica: str, job: int, choice: int) -> None:
        self.cancelled_choices.append((job, choice))
        await self.named(replica).replica.cancel_choice(call, job, choice, ReplicaRoute(replica, ""))

    def named(self, name: str) -> LocalReplica:
        """Return a replica. Raises ReplicaLost."""
        if name not in self.replicas:
            raise ReplicaLost(f"{name} is gone", is_strike=False)
        return self.replicas[name]

    def close(self) -> None:
        self.channels.close()
        for replica in self.replicas.values():
            replica.thread.stop()


class _Listener:
    """Implements `cluster.channels.Listener`."""

    def __init__(self, transport: LocalTransport) -> None:
        self._transport = transport

    async def run(self, calls: Calls, route: ReplicaRoute) -> None:
        self._transport.batches.append((route.replica, len(calls)))
        replica = self._transport.named(route.replica)
        await _unless_lost(replica, replica.replica.run(list(calls), route))

    async def cancel(self, calls: list[int], route: ReplicaRoute) -> None:
        await self._transport.named(route.replica).replica.cancel(calls, route)

    async def listen(self, route: ReplicaRoute) -> AsyncGenerator[bytes]:
        replica = self._transport.named(route.replica)
        async with aclosing(replica.replica.listen(route)) as frames:
            while True:
                try:
                    frame = await _unless_lost(replica, anext(frames))
                except StopAsyncIteration:
                    return
                await replica.is_connected.wait()
                yield frame
                if replica.dies_after is not None:
                    replica.dies_after -= len(decode_frame(frame))
                    if replica.dies_after < 0:
                        self._transport.kill(replica.name)
                        raise ReplicaLost(f"{replica.name} died")


async def _unless_lost(replica: LocalReplica, work: Coroutine[Any, Any, T]) -> T:
    """Await something of a replica. Raises ReplicaLost when it dies."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done() and not replica.lost.is_set():
            await asyncio.wait({task}, timeout=0.005)
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if replica.lost.is_set():
        raise ReplicaLost(f"{replica.name} died")
    return task.result()
