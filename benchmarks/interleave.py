"""Interleave several computations of one process in short turns, so that disturbances affect all of them alike."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import TypeVar

T = TypeVar("T")
Stepwise = Generator[None, None, T]
"""A computation that pauses after each of its steps and returns its result at the end."""

TURN_SECONDS = 2.0
"""A step is never interrupted, so a turn may be longer. It should not be shorter: the first step of a graph after
another computation is slower, because caches hold what the last one used."""


class TurnClock:
    """A clock for one of several computations: it advances during its own turns and is stopped during the others."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return self._before + (0.0 if self._since is None else time.perf_counter() - self._since)

    def __enter__(self) -> TurnClock:
        self._since = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._before, self._since = self(), None


def interleave(
    computations: Mapping[str, tuple[Stepwise[T], TurnClock]], seconds: float = TURN_SECONDS
) -> dict[str, T]:
    """Run all computations to their ends, in turns of about `seconds`; return their results in the same order."""
    results: dict[str, T] = {}
    while remaining := [name for name in computations if name not in results]:
        for name in remaining:
            steps, clock = computations[name]
            with clock:
                end = clock() + seconds
                try:
                    while clock() < end:
                        next(steps)
                except StopIteration as done:
                    results[name] = done.value
    return {name: results[name] for name in computations}


def run_to_end(steps: Stepwise[T]) -> T:
    """Run one computation without interruption; return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
