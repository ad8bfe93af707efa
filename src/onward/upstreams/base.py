"""What an upstream is: a server that continues token ids, part by part."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Protocol

from onward.sampling.outputs import Sampled
from onward.sampling.params import SamplingParams


class UpstreamError(Exception):
    """An upstream cannot be reached, or does not answer as it should. `is_lost`: it may answer later."""

    def __init__(self, message: str, *, is_lost: bool = False) -> None:
        super().__init__(message)
        self.is_lost = is_lost


@dataclass(frozen=True, slots=True)
class UpstreamInfo:
    """What an upstream serves. `fingerprint` changes when it may compute other results, as far as it says so."""

    vocab_size: int
    context_length: int
    num_slots: int
    """Sequences that it evaluates together."""
    fingerprint: str
    model_path: str = ""
    """The model's file, as the upstream names it; it may be on another machine."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A continuation that one upstream request computes: at most `max_tokens` tokens behind `tokens`.

    `seed` is below 2**32. `banned` are not sampled. `num_generated`: how many of the last `tokens` were generated, and
    are counted by penalties. `whole`: the answer is needed in one piece.
    """

    tokens: tuple[int, ...]
    num_generated: int
    max_tokens: int
    sampling: SamplingParams
    seed: int
    banned: frozenset[int] = frozenset()
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens of a segment, in order. `num_cached`: prompt tokens that came from the upstream's cache, where it says so.
    `is_broken`: tokens after these were computed whose ids the upstream does not report in this answer."""

    tokens: list[Sampled] = field(default_factory=list)
    num_cached: int | None = None
    is_broken: bool = False


class Upstream(Protocol):
    """A connection to a server. Used on one event loop."""

    lacks: frozenset[str]
    """Names of `completions.features` that it does not have."""

    async def probe(self) -> UpstreamInfo:
        """Return what it serves. Raises UpstreamError."""
        ...

    async def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without a start token. Raises UpstreamError."""
        ...

    def generate(self, segment: Segment) -> AsyncGenerator[Part]:
        """Compute a segment. Closing the generator ends the work. Raises UpstreamError."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
