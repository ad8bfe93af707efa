"""Which of llama-server's settings serves a load fastest, found by trying them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arms import PEER, TOP_K, Arm, Comparison, Shape
from benchmarks.llama_server import Slots, candidates, serve_peer

TRIALS = 2
"""Runs of a setting that count, after one that warms up; its best one speaks for it."""
HOPELESS = 0.7
"""A setting that is slower than so much of the fastest in its first run is not tried again."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The fastest settings, and output tokens a second of each that was tried, by name."""

    slots: Slots
    tried: dict[str, float]

    def report(self, extra: Sequence[str]) -> dict[str, Any]:
        return {"flags": [*self.slots.flags(), *extra], "chosen": self.slots.name, "tried_tok_s": self.tried}


def fastest(program: Path, gguf: Path, clients: int, shape: Shape, extra: Sequence[str], seeds: Iterator[int]) -> Tuned:
    """Try all candidates, one alive at a time, each with one request a client and run."""

    def rates(slots: Slots, runs: int) -> list[float]:
        return _rates(program, gguf, slots, shape, extra, seeds, runs)

    tried = {slots: rates(slots, 1)[0] for slots in candidates(clients, shape.length)}
    most = max(tried.values())
    for slots, rate in list(tried.items()):
        if rate >= HOPELESS * most:
            tried[slots] = max(rates(slots, 1 + TRIALS)[1:])
    return Tuned(max(tried, key=lambda slots: tried[slots]), {slots.name: rate for slots, rate in tried.items()})


def _rates(
    program: Path, gguf: Path, slots: Slots, shape: Shape, extra: Sequence[str], seeds: Iterator[int], runs: int
) -> list[float]:
    """Output tokens a second of each run, the first of which warms the server up."""
    with serve_peer(program, gguf, slots, extra) as server:
        comparison = Comparison(shape, slots.clients, [server], seeds)
        arm = Arm(PEER, gguf.stem, server, "peer", TOP_K)
        return [comparison.run(arm, 1).tok_s for _ in range(runs)]
