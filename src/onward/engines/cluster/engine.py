"""An engine client over replicas: a thread with an event loop, a task per flight.

What is sampled is kept here, with the clients' connections: a replica that is lost takes nothing with it. Its jobs are
resumed at another one that computes the same results, from the first token that did not arrive.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack, aclosing, suppress

import msgspec

from onward.engine.client import Deliver, EngineInfo, EngineState
from onward.engine.job import Job
from onward.engine_load import EngineLoad, RecoveryCounts
from onward.engines.cluster.flight import Flight, Placement, split_request
from onward.engines.cluster.members import Member, Members
from onward.engines.cluster.messages import decode_events, encode
from onward.engines.cluster.transport import Refused, ReplicaLost, ReplicaTransport
from onward.engines.loop_client import LoopClient
from onward.ipc.frames import BrokenMessage

log = logging.getLogger("onward.engine")

RETRY_SECONDS = 0.05
"""Before the second attempt at another replica; longer before later ones. The first is made at once."""
MAX_LOST_REPLICAS = 1_000
"""Names of replicas that are remembered, so that each is counted once."""


class ClusterEngine(LoopClient):
    """Implements `engine.client.EngineClient` over the replicas that a transport reaches.

    `info` is what was found at the start; `members` knows which replicas fit. `wait_seconds`: how long jobs wait for a
    replica; later requests are refused until there is one. Owns the transport.
    """

    def __init__(
        self,
        name: str,
        transport: ReplicaTransport,
        info: EngineInfo,
        members: Members,
        wait_seconds: float,
    ) -> None:
        super().__init__(name)
        self._wait_seconds = wait_seconds
        self._transport = transport
        self._members = members
        self._info = info
        self._load = EngineLoad()
        self._recoveries = RecoveryCounts()
        # What follows is used on the event loop only.
        self._flights: dict[Flight, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        """Set, and replaced, when the replicas change."""
        self._trial = asyncio.Lock()
        """Held by the one suspect that is tried."""
        self._absent_since: float | None = None
        self._placement = Placement()
        self._lost_replicas: dict[str, None] = {}
        """Those that were counted, in order."""

    # Any thread.

    def start(self, deliver: Deliver) -> None:
        super().start(deliver)
        atexit.register(self.stop)
        self._thread.start()
        self._transport.watch(lambda members: self._thread.call(self._update, members))

    @property
    def info(self) -> EngineInfo:
        """What the cluster serves now: `fingerprint` and `max_rows` follow its replicas."""
        return self._info

    @property
    def load(self) -> EngineLoad:
        """That of all replicas, as they reported it last, whoever sent them their jobs."""
        counts = self._recoveries
        return msgspec.structs.replace(self._load, recoveries=counts, num_moved=counts.num_resumed_requests)

    @property
    def is_given_up(self) -> bool:
        """Whether there has been no fit replica for so long that requests are refused."""
        since = self._absent_since
        return since is not None and self._loop.time() - since > self._wait_seconds

    def _post(self, jobs: list[Job]) -> None:
        self._loop.call_soon_threadsafe(self._begin, jobs, self._info.fingerprint)

    def _stopping(self) -> None:
        self._transport.close()

    # The event loop.

    def _update(self, members: Mapping[str, Member]) -> None:
        """Record the present replicas."""
        self._members.update(members)
        self._placement.update(members)
        before, self._info = self._info, self._members.serves(self._info)
        if before.fingerprint != self._info.fingerprint:
            log.info("%s: the cluster serves %s now, after %s", self._name, self._info.fingerprint, before.fingerprint)
        counts = self._members.counts
        self._load = msgspec.structs.replace(self._members.load(), engines=counts)
        if counts.num_answering:
            self._absent_since = None
            self._set_state(EngineState(engines=counts))
        else:
            reason = "its replicas serve another model than this server was started with"
            reason = reason if counts.num_engines else "it has no replica"
            self._set_state(EngineState("recovering", reason, counts))
            if self._absent_since is None:
                self._absent_since = self._loop.time()
                log.warning("%s: the cluster cannot compute: %s", self._name, reason)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _begin(self, jobs: list[Job], fingerprint: str) -> None:
        for group in split_request(jobs, len(self._members.fit)):
            flight = Flight(group, fingerprint, self._book)
            self._flights[flight] = self._loop.create_task(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        """Run a flight to its end, at as many replicas as it takes."""
        try:
            while not flight.has_ended:
                async with AsyncExitStack() as trial:
                    if flight.losses.is_suspect:
                        await trial.enter_async_context(self._trial)
                    able = await self._wait_for_replicas(flight)
                    replica = self._placement.choose(flight, able, self._transport.silent)
                    with self._placement.load_of(flight, replica):
                        lost = await self._run_call(flight, replica, trial)
                if lost is not None:
                    self._lost(flight, lost)
                    if flight.losses.is_unanswered:
                        raise ReplicaLost("no replica answers")
                    await asyncio.sleep(RETRY_SECONDS * max(0, flight.losses.num_losses - 1))
        except Refused as refused:
            self._fail(flight.jobs, "rejected", str(refused))
        except ReplicaLost as lost:
            self._fail(flight.jobs, "lost", str(lost))
        except asyncio.CancelledError:
            pass
        except Exception as error:
            log.exception("%s: a call failed", self._name)
            self._fail(flight.jobs, "rejected", repr(error))
        finally:
            self._flights.pop(flight, None)

    async def _wait_for_replicas(self, flight: Flight) -> list[str]:
        """Return the replicas that can compute a flight; wait for one. Raises ReplicaLost after `wait_seconds`."""
        deadline = self._loop.time() + self._wait_seconds
        while not (able := self._members.with_fingerprint(flight.fingerprint)):
            left = deadline - self._loop.time()
            if left <= 0:
                raise ReplicaLost(f"the cluster no longer has a replica that computes {flight.fingerprint}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return able

    async def _run_call(self, flight: Flight, replica: str, trial: AsyncExitStack) -> ReplicaLost | None:
        """Have a replica compute what is left of a flight, until it has ended or that replica is lost; return the loss.
        Progress ends its trial. Raises Refused."""
        jobs = flight.begin_call(replica)
        try:
            async with aclosing(self._transport.run(flight.call, replica, encode(jobs))) as items:
                async for item in items:
                    events, stopped = flight.accept(decode_events(item))
                    if events:
                        await trial.aclose()
                        self._emit(events)
                    if flight.has_ended:
                        return None
                    if stopped is not None:
                        return ReplicaLost(stopped, is_strike=False)
        except ReplicaLost as lost:
            return lost
        except BrokenMessage as broken:
            raise Refused(f"{broken}: do all machines run the same version of Onward?") from None
        return ReplicaLost("its stream ended early")

    def _lost(self, flight: Flight, lost: ReplicaLost) -> None:
        """Resume a flight elsewhere, or end it if it is the cause of losses."""
        flight.lost(is_strike=lost.is_strike)
        replica = flight.replica or ""
        log.warning("%s: a request lost replica %s and is resumed elsewhere: %s", self._name, replica, lost)
        is_news = lost.is_strike and replica not in self._lost_replicas
        if is_news:
            self._lost_replicas[replica] = None
            if len(self._lost_replicas) > MAX_LOST_REPLICAS:
                del self._lost_replicas[next(iter(self._lost_replicas))]
        counted, is_poisoned = self._recoveries, flight.losses.is_struck_out
        self._recoveries = msgspec.structs.replace(
            counted,
            num_crashes=counted.num_crashes + is_news,
            num_resumed_requests=counted.num_resumed_requests + (not is_poisoned),
            num_poisoned_requests=counted.num_poisoned_requests + is_poisoned,
        )
        if is_poisoned:
            reason = "replicas were lost repeatedly as soon as they began to compute this request"
            self._fail(flight.jobs, "poisoned", reason)

    def _cancel(self, request: int) -> None:
        self._book.cancel(request)
        for flight, task in list(self._flights.items()):
            if flight.request == request:
                task.cancel()
                self._flights.pop(flight, None)

    def _cancel_choice(self, job: int, choice: int) -> None:
        flight = next((each for each in self._flights if job in each.jobs), None)
        if flight is None or not self._book.cancel_choice(job, choice):
            return
        if flight.has_ended:
            self._flights[flight].cancel()
        elif flight.replica is not None:
            task = self._loop.create_task(self._cancel_there(flight.call, flight.replica, job, choice))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _cancel_there(self, call: int, replica: str, job: int, choice: int) -> None:
        with suppress(ReplicaLost):
            await self._transport.cancel_choice(call, replica, job, choice)
