"""The addresses of one model: which of them gets a job, and who waits while none answers.

A job goes where its prefix is cached, unless that address has too much to do (`routing`). One that waits there
goes on to an address that has a free slot before. An address whose connection is lost is left out until it answers
again and is still the same. One that answers but fails MAX_FAILURES times in a row rests, each time longer, and is then
tried with one job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from onward.engine.client import EngineState
from onward.engine_load import EngineCounts
from onward.engines.upstreams.base import Traits, Upstream, UpstreamError, UpstreamInfo
from onward.engines.upstreams.slots import Slots
from onward.routing import Router, prefix_keys

log = logging.getLogger("onward.engine")

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
"""Between two attempts to reach an address."""
MAX_FAILURES = 3
"""Failures of an address, without a token between them, before it rests."""
FIRST_REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 60.0
CHECK_SECONDS = 30.0
CHANGED = "the upstream serves another model, or another version of itself, than when this server started"
SHORTER = "the upstream serves a shorter context than when this server started"

CheckUpstream = Callable[[str, Upstream], Coroutine[Any, Any, None]]
"""Raises UpstreamError for an upstream, at an address, that is not fit."""


class Address:
    """One server, and its health. Used on one event loop."""

    def __init__(self, url: str, upstream: Upstream) -> None:
        self.url = url
        self.upstream = upstream
        self.slots = Slots(1)
        self.is_known = False
        """Whether it has answered and was found fit."""
        self.is_lost = self.is_changed = False
        self.num_losses = 0
        self.num_failures = 0
        """In a row."""
        self.rests_until = 0.0
        """On the event loop's clock."""
        self.reason = ""

    @property
    def is_suspect(self) -> bool:
        return self.num_failures >= MAX_FAILURES

    @property
    def answers(self) -> bool:
        return not (self.is_lost or self.is_changed)

    def set_slots(self, number: int) -> None:
        """Set how many choices are sent to it at a time. Before the first is."""
        self.slots = Slots(max(1, number))


class Place:
    """Where a job is computed: all its choices at one address. `size`: its choices that have not ended. `has_begun`:
    whether one of them has had a slot there."""

    __slots__ = ("address", "has_begun", "keys", "prompt", "size")

    def __init__(self, prompt: tuple[int, ...], size: int) -> None:
        self.prompt = prompt
        self.keys: tuple[int, ...] = ()
        self.size = size
        self.address: Address | None = None
        self.has_begun = False


class Pool:
    """The addresses of a model, at least one. Used on one event loop, except `is_given_up`.

    `set_state` is called with every new state; `changed` with a reason when every address serves something else.
    `max_slots`: of an address, whatever it says. `may_return`: whether to keep waiting when no address has answered
    for `wait_seconds`. `is_own`: whether an address computes for nobody else: after a failure its engine must do
    something before it counts as answering, since a server may answer while its engine hangs.
    """

    def __init__(
        self,
        name: str,
        upstreams: dict[str, Upstream],
        check: CheckUpstream | None,
        set_state: Callable[[EngineState], None],
        changed: Callable[[str], None],
        *,
        max_slots: int | None,
        wait_seconds: float,
        may_return: Callable[[], bool],
        is_own: bool,
    ) -> None:
        self.addresses = [Address(url, upstream) for url, upstream in upstreams.items()]
        self._name = name
        self._check = check
        self._set_state = set_state
        self._changed = changed
        self._max_slots = max_slots
        self._wait_seconds = wait_seconds
        self._may_return = may_return
        self._is_own = is_own
        self._described: UpstreamInfo | None = None
        self._router = Router(upstreams)
        self._answers = asyncio.Event()
        self._searches: set[asyncio.Task[None]] = set()
        self._patience: asyncio.TimerHandle | None = None
        self.counts = EngineCounts(len(self.addresses), len(self.addresses))
        """How many addresses answer and do not rest."""
        self.num_moved = 0
        """Jobs that were resumed at another address."""
        self.is_given_up = False
        """Whether no address has answered for so long."""

    @property
    def traits(self) -> Traits:
        """Those of the address that lacks most. They count late if any of them does."""
        found = [address.upstream.traits for address in self.addresses]
        return replace(max(found, key=lambda one: len(one.lacks)), counts_late=any(one.counts_late for one in found))

    async def connect(self) -> tuple[UpstreamInfo, int]:
        """Reach the addresses; return what they serve, and how many choices they compute together.

        Those that cannot be reached are looked for from now on, unless all cannot. Raises UpstreamError.
        """
        found = await asyncio.gather(*map(self._ask, self.addresses), return_exceptions=True)
        infos: dict[str, UpstreamInfo] = {}
        lost: list[tuple[Address, UpstreamError]] = []
        for address, result in zip(self.addresses, found, strict=True):
            if isinstance(result, UpstreamInfo):
                infos[address.url] = result
            elif isinstance(result, UpstreamError) and result.is_lost:
                lost.append((address, result))
            else:
                raise result
        if not infos:
            raise lost[0][1]
        self._described = _common(infos)
        self._answers.set()
        for address, error in lost:
            log.warning("%s: %s", self._name, error)
            address.set_slots(self._bounded(self._described.num_slots))
            self._look_for(address, str(error))
        return self._described, sum(address.slots.number for address in self.addresses)

    async def close(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        for address in self.addresses:
            await address.upstream.close()

    async def place(self, place: Place) -> Address:
        """Return the address at which a job is resumed: the one it has, or another if that is lost. Waits while none
        answers. Raises UpstreamError when that was given up."""
        while True:
            await self._answers.wait()
            if self.is_given_up:
                raise UpstreamError(self._reason(), is_lost=True)
            if place.address is not None and place.address.answers:
                return place.address
            if (address := self._choose(place)) is not None:
                self._move(place, address)
                return address

    def resize(self, place: Place, size: int) -> None:
        """Record how many choices of a job have not ended."""
        if place.address is not None:
            self._router.end(place.address.url, place.size - size)
        place.size = size
        self._spread()

    def failed(self, address: Address, num_losses: int, error: UpstreamError) -> None:
        """Note that an attempt at an address has failed, which began when the address had been lost `num_losses`
        times."""
        if error.is_request or not (error.is_lost or len(self.addresses) > 1) or num_losses != address.num_losses:
            return
        address.num_failures += 1
        if address.is_suspect:
            rest = min(FIRST_REST_SECONDS * 2.0 ** (address.num_failures - MAX_FAILURES), LONGEST_REST_SECONDS)
            loop = asyncio.get_running_loop()
            address.rests_until = loop.time() + rest
            loop.call_later(rest, self._update)
        self._look_for(address, str(error))

    def lost(self, reason: str) -> None:
        """No address answers, as another part of the engine found: look for what takes its place from now on."""
        for address in self.addresses:
            address.num_failures = 0
            if not address.is_lost:
                self._look_for(address, reason)

    def worked(self, address: Address) -> None:
        """A token has come from an address."""
        if address.num_failures:
            address.num_failures = 0
            self._update()

    def may_retry(self, error: UpstreamError) -> bool:
        """Whether what failed may be tried again: the connection was lost, or another address may do better."""
        return error.is_lost or (not error.is_request and len(self.addresses) > 1)

    def counts_as_attempt(self, error: UpstreamError) -> bool:
        """Whether it says something about the job: not where one of several addresses was not reached at all."""
        return not (error.is_unsent and len(self.addresses) > 1)

    def _choose(self, place: Place) -> Address | None:
        """Return the best address that answers, one that rests only if no other does; one with free slots if there is
        one, else the one with the least to do for its slots."""
        well = [address for address in self.addresses if self._may_try(address)]
        named = {address.url: address for address in well or [one for one in self.addresses if one.answers]}
        if len(self.addresses) == 1:
            return next(iter(named.values()), None)
        place.keys = place.keys or prefix_keys(place.prompt)
        ranked = self._router.rank(place.keys, place.size, named)
        free = (url for url in ranked if self._router.load(url) + place.size <= named[url].slots.number)
        by_load = min(ranked, key=lambda url: self._load(named[url]), default="")
        return named.get(next(free, by_load))

    def _move(self, place: Place, address: Address) -> None:
        if place.address is not None:
            self._router.end(place.address.url, place.size)
            self.num_moved += place.has_begun and place.address is not address
        place.address, place.has_begun = address, False
        self._router.begin(address.url, place.keys, place.size)

    def _spread(self) -> None:
        """Move jobs that wait for a slot, and of which nothing has begun, to addresses with a free one."""
        if len(self.addresses) == 1:
            return
        for free in filter(self._may_try, self.addresses):
            while self._load(free) < 1 and (place := self._waiting_elsewhere(free)) is not None:
                assert place.address is not None
                slots = place.address.slots
                self._move(place, free)
                slots.send_away(place)

    def _waiting_elsewhere(self, free: Address) -> Place | None:
        """Return the job that should wait no longer: of the address with the most to do the one that is next there."""
        for address in sorted(self.addresses, key=self._load, reverse=True):
            if address is not free and self._load(address) > 1:
                place = address.slots.first_of(lambda job: isinstance(job, Place) and not job.has_begun)
                if isinstance(place, Place):
                    return place
        return None

    def _load(self, address: Address) -> float:
        """Return how much there is to do for each of its slots."""
        return self._router.load(address.url) / address.slots.number

    def _is_well(self, address: Address) -> bool:
        """Whether it answers and does not rest."""
        now = asyncio.get_running_loop().time()
        return address.answers and (not address.is_suspect or now >= address.rests_until)

    def _may_try(self, address: Address) -> bool:
        """Whether jobs may be sent there: to a suspect one at a time."""
        return self._is_well(address) and not (address.is_suspect and self._router.load(address.url))

    def _look_for(self, address: Address, reason: str) -> None:
        address.is_lost, address.reason = True, reason
        address.num_losses += 1
        address.slots.send_away()
        self._update()
        task = asyncio.get_running_loop().create_task(self._look(address))
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    async def _look(self, address: Address) -> None:
        """Probe an address until it answers and serves what it did."""
        pause = FIRST_PAUSE_SECONDS
        while True:
            described = await self._probe(address)
            if described is not None:
                difference = self._difference(described)
                if not difference:
                    break
                self._has_changed(address, difference)
                if all(other.is_changed for other in self.addresses):
                    return
                pause = LONGEST_PAUSE_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if len(self.addresses) > 1:
            log.warning("%s: %s answers again", self._name, address.url)
        address.is_lost = address.is_changed = False
        self._update()

    def _difference(self, described: UpstreamInfo) -> str:
        """Return how what is served differs from what was served at the start; "": it does not."""
        assert self._described is not None
        if described.fingerprint != self._described.fingerprint:
            return CHANGED
        return SHORTER if described.context_length < self._described.context_length else ""

    def _has_changed(self, address: Address, reason: str) -> None:
        if not address.is_changed and len(self.addresses) > 1:
            log.error("%s: %s is left out: %s", self._name, address.url, reason)
        address.is_changed, address.reason = True, reason
        if all(other.is_changed for other in self.addresses):
            self._changed(reason)

    async def _probe(self, address: Address) -> UpstreamInfo | None:
        try:
            return await self._ask(address)
        except UpstreamError as error:
            address.reason = str(error)
            return None

    async def _ask(self, address: Address) -> UpstreamInfo:
        """Return what an address serves; the first time, check it. Raises UpstreamError."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                described = await address.upstream.probe()
                if not address.is_known and self._check is not None:
                    await self._check(address.url, address.upstream)
            if self._is_own and address.num_failures:  # else a token has come meanwhile
                await self._check_engine(address)
        except TimeoutError:
            raise UpstreamError(f"{address.url} takes too long to answer.", is_lost=True) from None
        except UpstreamError as error:
            error.locate(address.url)
            raise
        if not address.is_known:
            address.set_slots(self._bounded(described.num_slots))
            address.is_known = True
        return described

    async def _check_engine(self, address: Address) -> None:
        """Wait until an engine does something, or its server refuses to say so. Raises UpstreamError where it is lost,
        and TimeoutError."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await address.upstream.check_engine()
        except UpstreamError as error:
            if error.is_lost:
                raise
        self.worked(address)

    def _bounded(self, num_slots: int) -> int:
        return min(num_slots, self._max_slots or num_slots)

    def _update(self) -> None:
        """Publish the state, and start or stop the time after which waiting is given up."""
        self.counts = EngineCounts(sum(map(self._is_well, self.addresses)), len(self.addresses))
        if any(address.answers for address in self.addresses):
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None
            self.is_given_up = False
            self._set_state(EngineState(engines=self.counts))
            self._answers.set()
            self._spread()
        else:
            self._set_state(EngineState("recovering", self._reason(), self.counts))
            if self._patience is not None:
                return
            self._answers.clear()
            self._be_patient()

    def _be_patient(self) -> None:
        self._patience = asyncio.get_running_loop().call_later(self._wait_seconds, self._give_up)

    def _give_up(self) -> None:
        if self._may_return():
            self._be_patient()
            return
        log.error("%s: %s; requests are refused until it answers", self._name, self._reason())
        self.is_given_up = True
        self._answers.set()

    def _reason(self) -> str:
        return next((address.reason for address in self.addresses if address.reason), "")


def _common(infos: dict[str, UpstreamInfo]) -> UpstreamInfo:
    """Return what all addresses serve: the shortest context, and the fewest slots. Raises UpstreamError if one serves
    something else."""
    first = next(iter(infos))
    for url, info in infos.items():
        if info.fingerprint != infos[first].fingerprint:
            raise UpstreamError(
                f"{url} serves another model, or another version of it, than {first}: {info.fingerprint!r} there, "
                f"{infos[first].fingerprint!r} here. All addresses of a model must serve the same."
            )
    contexts = (info.context_length for info in infos.values())
    slots = (info.num_slots for info in infos.values())
    return UpstreamInfo(min(contexts), min(slots), infos[first].fingerprint, infos[first].model_path)
