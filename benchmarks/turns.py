"""Works of one process that take turns of a fraction of a second: what slows the machine for a while slows them all."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import TypeVar

T = TypeVar("T")
Pieces = Generator[None, None, T]
"""A work that pauses after each of its pieces, and gives its result at the end."""

TURN = 2.0
"""Seconds. A piece that was begun is finished, so a turn may be longer. Not shorter: a graph's first step after another
work's is slower, as OpenVINO prepares itself anew when the number of tokens changes, and large steps fill a turn."""


class OwnTime:
    """A clock for one of several works: seconds of its own turns. It stands still during the others'."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return self._before + (0.0 if self._since is None else time.perf_counter() - self._since)

    def __enter__(self) -> OwnTime:
        self._since = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._before, self._since = self(), None


def take_turns(works: Mapping[str, tuple[Pieces[T], OwnTime]], seconds: float = TURN) -> dict[str, T]:
    """Run all works to their ends, in turns of about `seconds`; their results, in the order of the works."""
    results: dict[str, T] = {}
    while left := [name for name in works if name not in results]:
        for name in left:
            work, clock = works[name]
            with clock:
                end = clock() + seconds
                try:
                    while clock() < end:
                        next(work)
                except StopIteration as done:
                    results[name] = done.value
    return {name: results[name] for name in works}


def finish(work: Pieces[T]) -> T:
    """Run a work that has nobody to take turns with."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result
