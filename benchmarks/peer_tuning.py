"""Find the fastest llama-server settings for a load, by trying them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arms import PEER, TOP_K, Arm, Comparison, Shape
from benchmarks.llama_server import Slots, candidates, serve_peer

NUM_TRIALS = 2
"""Measured runs of a setting, after a warm-up run; the best one counts."""
MIN_RETRY_FRACTION = 0.7
"""A setting whose first run is slower than this fraction of the fastest is not tried again."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The fastest settings, and output tokens per second of each setting tried, by name."""

    slots: Slots
    tried: dict[str, float]

    def report(self, extra: Sequence[str]) -> dict[str, Any]:
        """Return the settings and trials for the JSON report."""
        return {"flags": [*self.slots.flags(), *extra], "chosen": self.slots.name, "tried_tok_s": self.tried}


def tune(program: Path, gguf: Path, clients: int, shape: Shape, extra: Sequence[str], seeds: Iterator[int]) -> Tuned:
    """Try all candidates, one server at a time, with one request per client and run."""

    def rates(slots: Slots, runs: int) -> list[float]:
        return _rates(program, gguf, slots, shape, extra, seeds, runs)

    settings = candidates(clients, shape.total_tokens, caching=shape.shared > 0)
    tried = {slots: rates(slots, 1)[0] for slots in settings}
    highest = max(tried.values())
    for slots, rate in list(tried.items()):
        if rate >= MIN_RETRY_FRACTION * highest:
            tried[slots] = max(rates(slots, 1 + NUM_TRIALS)[1:])
    return Tuned(max(tried, key=lambda slots: tried[slots]), {slots.name: rate for slots, rate in tried.items()})


def untuned(clients: int, shape: Shape) -> Tuned:
    """Return llama-server's usual settings, untried: one thread per core, a KV cache per slot."""
    return Tuned(candidates(clients, shape.total_tokens, caching=shape.shared > 0)[0], {})


def _rates(
    program: Path, gguf: Path, slots: Slots, shape: Shape, extra: Sequence[str], seeds: Iterator[int], runs: int
) -> list[float]:
    """Return output tokens per second of each run. The first run warms the server up."""
    with serve_peer(program, gguf, slots, extra) as server:
        comparison = Comparison(shape, slots.clients, [server], seeds)
        arm = Arm(PEER, gguf.stem, server, "peer", TOP_K)
        return [comparison.run(arm, 1).tok_s for _ in range(runs)]
