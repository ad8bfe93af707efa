"""Threads for the work of many clients, none of whom can hold them all."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class FairPool:
    """Threads for the work of many owners, who take turns; each has at most `max_per_owner` of them. Any thread.

    Threads start when they are needed, and end with `close` or with the process.
    """

    def __init__(self, name: str, max_threads: int, max_per_owner: int) -> None:
        self._name = name
        self._max_threads = max_threads
        self._max_per_owner = max_per_owner
        self._changed = threading.Condition()
        """Guards what follows; held for microseconds."""
        self._queues: OrderedDict[str, deque[tuple[Future[Any], Callable[[], Any]]]] = OrderedDict()
        self._num_running: dict[str, int] = {}
        self._num_threads = 0
        self._is_closed = False

    def submit(self, owner: str, work: Callable[[], T]) -> Future[T]:
        """Return the future result of `work`. If that is cancelled before the work begins, the work is dropped."""
        future: Future[T] = Future()
        with self._changed:
            self._queues.setdefault(owner, deque()).append((future, work))
            if self._num_threads < min(self._max_threads, self._num_startable()):
                self._start_thread(owner)
            self._changed.notify()
        return future

    def close(self) -> None:
        """Drop what has not begun; threads end after their current work."""
        with self._changed:
            self._is_closed = True
            for queue in self._queues.values():
                for future, _ in queue:
                    future.cancel()
            self._queues.clear()
            self._changed.notify_all()

    def _num_startable(self) -> int:
        """Return how much work may run at the same time."""
        owners = self._queues.keys() | self._num_running.keys()
        counts = (len(self._queues.get(owner, ())) + self._num_running.get(owner, 0) for owner in owners)
        return sum(min(count, self._max_per_owner) for count in counts)

    def _start_thread(self, owner: str) -> None:
        """Start one more, if the system has it. Without any, drop the owner's last work and raise RuntimeError."""
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._num_threads += 1
        except RuntimeError:
            if not self._num_threads:
                self._queues[owner].pop()
                raise

    def _run(self) -> None:
        while (found := self._next()) is not None:
            owner, future, work = found
            try:
                if future.set_running_or_notify_cancel():
                    self._do(future, work)
            finally:
                with self._changed:
                    self._num_running[owner] -= 1
                    if not self._num_running[owner]:
                        del self._num_running[owner]
                    self._changed.notify()

    @staticmethod
    def _do(future: Future[Any], work: Callable[[], Any]) -> None:
        try:
            result = work()
        except BaseException as error:  # a panic in a Rust library is not an Exception
            future.set_exception(error)
        else:
            future.set_result(result)

    def _next(self) -> tuple[str, Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._is_closed:
                for owner, queue in self._queues.items():
                    if queue and self._num_running.get(owner, 0) < self._max_per_owner:
                        future, work = queue.popleft()
                        self._queues.move_to_end(owner)
                        if not queue:
                            del self._queues[owner]
                        self._num_running[owner] = self._num_running.get(owner, 0) + 1
                        return owner, future, work
                self._changed.wait()
        return None
