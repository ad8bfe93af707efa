"""Replicas in this process: a transport without Ray, whose replicas die when a test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from onward.cluster.channels import Channels
from onward.cluster.members import Member
from onward.cluster.messages import PROTOCOL, ReplicaInfo, Route, decode_frame
from onward.cluster.replica import EngineReplica
from onward.cluster.transport import OnMembers, ReplicaLost
from onward.engine.client import EngineInfo, EngineLoad
from onward.engine.step import Engine
from onward.engine.thread import EngineThread
from onward.routing.router import Router
from onward.runtimes.toy.model import ToyModel
from onward.runtimes.toy.tokenizer import ToyTokenizer
from onward.sampling.sampler import Sampler

T = TypeVar("T")

VOCABULARY = "toy"


class SlowModel(ToyModel):
    def evaluate(self, *arguments: Any, **keywords: Any) -> Any:
        time.sleep(0.002)
        return super().evaluate(*arguments, **keywords)


@dataclass(eq=False)
class LocalReplica:
    """A replica over an engine on the toy model. `dies_after`: items of calls after which it dies by itself.
    `is_slow`: steps take two milliseconds, so that a test can act between them. `is_connected`: cleared, nothing that
    it sends arrives."""

    name: str
    fingerprint: str = "fp_toy"
    vocabulary: str = VOCABULARY
    started: float = 0.0
    dies_after: int | None = None
    is_slow: bool = False
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    is_connected: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        model, tokenizer = SlowModel() if self.is_slow else ToyModel(), ToyTokenizer()
        engine = Engine(model, tokenizer, Sampler(model.vocab_size), load_tokenizer=lambda: tokenizer)
        self.thread = EngineThread(engine, name=self.name, fingerprint=self.fingerprint)
        info = ReplicaInfo(PROTOCOL, "toy", "toy", 1, self.vocabulary, self.thread.info, self.started)
        self.replica = EngineReplica(self.thread, info, name=self.name)
        self.is_connected.set()
        self.member = Member(self.name, ReplicaInfo.decode(info.encode()), EngineLoad())

    @property
    def info(self) -> EngineInfo:
        return self.thread.info


class LocalTransport:
    """Implements `cluster.transport.Transport`. All replicas must be made on the event loop of a test, and are reached
    from that of the engine client: what crosses is bytes."""

    def __init__(self, *replicas: LocalReplica) -> None:
        self.replicas = {replica.name: replica for replica in replicas}
        self.router = Router(self.replicas)
        self.calls: list[str] = []
        """The replica of each call, in order."""
        self.cancelled_choices: list[tuple[int, int]] = []
        self.channels = Channels(self._listen)
        self._on_members: OnMembers = lambda members: None

    def watch(self, on_members: OnMembers) -> None:
        self._on_members = on_members
        self.report()

    def report(self) -> None:
        """Report the replicas that are left."""
        members: Mapping[str, Member] = {
            name: Member(name, replica.member.info, replica.thread.load) for name, replica in self.replicas.items()
        }
        self.router.set_replicas(members, {name: member.info.engine.max_rows for name, member in members.items()})
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

    async def run(self, payload: bytes, route: Route) -> AsyncGenerator[bytes]:
        route.avoid = (*route.avoid, *self.channels.silent)
        async with aclosing(self.channels.stream(route, lambda: self._call(payload, route))) as items:
            async for item in items:
                yield item

    async def _call(self, payload: bytes, route: Route) -> None:
        fit = {name for name, replica in self.replicas.items() if replica.fingerprint == route.fingerprint}
        ranked = self.router.rank(route.keys, route.size, fit - set(route.avoid) or fit)
        if not ranked:
            raise ReplicaLost("no replica took the call")
        replica = self.replicas[ranked[0]]
        route.replica = replica.name
        self.calls.append(replica.name)
        self.router.begin(replica.name, route.keys, route.size)
        self.channels.attach(route.call, replica.name)
        try:
            await _unless_lost(replica, replica.replica.run(payload, route))
        finally:
            self.router.end(replica.name, route.size)

    async def _listen(self, name: str, route: Route) -> AsyncGenerator[bytes]:
        replica = self.replicas.get(name)
        if replica is None:
            raise ReplicaLost("gone")
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
                        self.kill(replica.name)
                        raise ReplicaLost(f"{replica.name} died")

    async def cancel_choice(self, route: Route, job: int, choice: int) -> None:
        self.cancelled_choices.append((job, choice))
        replica = self.replicas.get(route.only or "")
        if replica is None:
            raise ReplicaLost("gone")
        await replica.replica.cancel_choice(route.call, job, choice, route)

    def close(self) -> None:
        self.channels.close()
        for replica in self.replicas.values():
            replica.thread.stop()


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
