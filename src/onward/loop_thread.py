"""An event loop on a thread of its own, for engine clients that wait for others rather than compute."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

STOP_SECONDS = 5.0
"""How long `stop` waits for what is to be closed."""


def fast_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's, where there is one for this platform: it takes less processor time, also to be woken by other
    threads."""
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """`loop` runs from `start` until `stop`. All methods may be called on any other thread."""

    def __init__(self, name: str) -> None:
        self.loop = fast_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread. Called once."""
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on the loop, soon; not if the loop has ended."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function, *arguments)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and wait for its result. Raises what it raises."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def stop(self, end: Callable[[], object], close: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Call `end` on the loop, cancel its tasks, run `close`, and end the thread. Waits for STOP_SECONDS at most.
        May be called more than once, and before `start`."""
        if self._thread.is_alive():
            self.call(self._end, end, close)
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def _end(self, end: Callable[[], object], close: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        try:
            end()
        finally:
            self._ending = self.loop.create_task(self._close(close))

    async def _close(self, close: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.loop.shutdown_asyncgens()
        try:
            if close is not None:
                await close()
        finally:
            self.loop.stop()
