"""An upstream that is lost: who waits for it, for how long, and whether it is still the same when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from onward.engine.client import EngineState
from onward.upstreams.base import Upstream, UpstreamError, UpstreamInfo

log = logging.getLogger("onward.engine")

PATIENCE_SECONDS = 30.0
"""How long jobs wait for an upstream that is lost. Later ones are refused until it answers again."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
"""Between two attempts to reach it."""
CHANGED = "the upstream serves another model, or another version of itself, than when this server started"


class Watch:
    """Looks for an upstream that is lost. Used on one event loop, except `is_given_up`.

    `set_state` is called with every new state; `changed` with a reason where the upstream that answers is another one.
    """

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        described: UpstreamInfo,
        set_state: Callable[[EngineState], None],
        changed: Callable[[str], None],
    ) -> None:
        self._name = name
        self._upstream = upstream
        self._described = described
        self._set_state = set_state
        self._changed = changed
        self._answers = asyncio.Event()
        self._answers.set()
        self._search: asyncio.Task[None] | None = None
        self._reason = ""
        self.is_given_up = False
        """Whether it has been away for PATIENCE_SECONDS."""

    async def wait(self) -> None:
        """Wait until the upstream answers. Raises UpstreamError when that was given up."""
        await self._answers.wait()
        if self.is_given_up:
            raise UpstreamError(self._reason, is_lost=True)

    def lost(self, reason: str) -> None:
        """Begin to look for the upstream, unless that has begun."""
        self._reason = reason
        if self._search is None or self._search.done():
            self._answers.clear()
            self._set_state(EngineState("recovering", reason))
            self._search = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Probe the upstream until it answers; after PATIENCE_SECONDS, let those that wait for it fail."""
        loop = asyncio.get_running_loop()
        pause, deadline = FIRST_PAUSE_SECONDS, loop.time() + PATIENCE_SECONDS
        while (described := await self._probe()) is None:
            if loop.time() > deadline and not self.is_given_up:
                log.error("%s: %s; requests are refused until it answers", self._name, self._reason)
                self.is_given_up = True
                self._answers.set()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        if described.fingerprint != self._described.fingerprint:
            self._changed(CHANGED)
            return
        self.is_given_up = False
        self._set_state(EngineState())
        self._answers.set()

    async def _probe(self) -> UpstreamInfo | None:
        try:
            return await self._upstream.probe()
        except UpstreamError as error:
            self._reason = str(error)
            return None
