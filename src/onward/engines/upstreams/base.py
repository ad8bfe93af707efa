"""What an upstream is: a server that continues token ids, part by part."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from onward.engine_load import Certificate
from onward.sampling.outputs import Sampled
from onward.sampling.params import SamplingParams


class UpstreamError(Exception):
    """An upstream cannot be reached, or does not answer as it should. `is_lost`: it may answer later. `is_unsent`: it
    was not reached. `is_request`: it refused the request itself, as another server of the same model would."""

    def __init__(
        self, message: str, *, is_lost: bool = False, is_unsent: bool = False, is_request: bool = False
    ) -> None:
        super().__init__(message)
        self.is_lost = is_lost
        self.is_unsent = is_unsent
        self.is_request = is_request

    def locate(self, url: str) -> None:
        """Add the upstream's address, if the text does not have it."""
        if url not in str(self):
            self.args = (f"{url}: {self}",)


@dataclass(frozen=True, slots=True)
class UpstreamInfo:
    """What an upstream serves. `fingerprint` changes when it may compute other results, as far as it says so."""

    context_length: int
    num_slots: int
    """Sequences that it evaluates together."""
    fingerprint: str
    model_path: str = ""
    """The model's file, as the upstream names it; it may be on another machine."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A continuation that one upstream request computes: at most `max_tokens` tokens after `tokens`.

    `seed` is below 2**32. `banned` are not sampled. `allowed`, bool [vocabulary]: which others may be; None: all.
    `penalties`: what DRY adds to logits, and the penalties that `sampling` does not have here, as (token id, value)
    pairs. `num_generated`: how many of the last `tokens` were generated, and are counted by the penalties of
    `sampling`. `whole`: the answer is needed in one piece. `end_tokens` end it, but the upstream bans them among its
    first `min_tokens` (`Traits.has_min_tokens`). `salt`: see `Job`. `grammar`: what the upstream itself keeps to
    (`Traits.has_grammars`), end token included, in llguidance's Lark. `has_own_ends`: whether `end_tokens` has all that
    are the model's own.
    """

    tokens: tuple[int, ...]
    num_generated: int
    max_tokens: int
    sampling: SamplingParams
    seed: int
    banned: frozenset[int] = frozenset()
    whole: bool = False
    end_tokens: frozenset[int] = frozenset()
    min_tokens: int = 0
    allowed: NDArray[np.bool_] | None = None
    penalties: tuple[tuple[int, float], ...] = ()
    salt: str = ""
    grammar: str = ""
    has_own_ends: bool = False

    @property
    def biases(self) -> dict[int, float]:
        """What the request and penalties add to logits, by token id."""
        biases: dict[int, float] = {}
        for token, value in (*self.sampling.logit_bias, *self.penalties):
            biases[token] = biases.get(token, 0.0) + value
        return biases

    @property
    def forced_token(self) -> int | None:
        """The only token that may come next, where nobody asks how likely it is: no upstream needs to compute it."""
        if self.allowed is None or self.sampling.logprobs is not None:
            return None
        found = np.flatnonzero(self.allowed)
        return int(found[0]) if found.size == 1 else None


@dataclass(frozen=True, slots=True)
class Traits:
    """What a kind of server can do. `lacks`: names of `completions.features`.

    `has_min_tokens`: it bans end tokens until a length itself, those of the request and the model's own: it is asked to
    where all of these end the text. `counts_prompt`: its penalties count the last tokens that a request names, also of
    the prompt, so that it is asked for one token at a time. Where they count all generated tokens, and those alone,
    what was generated before a request is penalised by biases. `counts_late`: they count a token one step too late: all
    is penalised by biases. `counts_cache_last`: it says after the last token how many tokens of the prompt were in its
    cache. `has_distribution`: it reports the log-probability of every token, from which Onward samples where the
    upstream does not have the samplers.
    `has_grammars`: it can keep to a grammar itself, with the masks that llguidance computes here.
    """

    lacks: frozenset[str]
    has_min_tokens: bool = False
    counts_prompt: bool = True
    counts_late: bool = False
    counts_cache_last: bool = False
    has_distribution: bool = False
    has_grammars: bool = False


class AnswerPart(msgspec.Struct, frozen=True):
    """Tokens of a segment, in order. `num_cached`: prompt tokens that came from the upstream's cache, where it says so.
    `is_broken`: tokens after these were computed whose ids the upstream does not report in this answer."""

    tokens: list[Sampled] = []
    num_cached: int | None = None
    is_broken: bool = False


class Upstream(Protocol):
    """A connection to a server. Used on one event loop."""

    traits: Traits

    @property
    def certificate(self) -> Certificate | None:
        """What is known of its certificate, None where none is used. Read on any thread."""
        ...

    @property
    def heard_at(self) -> float:
        """When it last sent something, whatever it was, in `time.monotonic`; 0: never. Read on any thread."""
        ...

    async def probe(self) -> UpstreamInfo:
        """Return what it serves. Raises UpstreamError."""
        ...

    async def check_engine(self) -> None:
        """Wait until its engine, not only its server, has done something. Raises UpstreamError."""
        ...

    async def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without a start token. Raises UpstreamError."""
        ...

    def generate(self, segment: Segment) -> AsyncGenerator[AnswerPart]:
        """Compute a segment. Closing the generator ends the work. Raises UpstreamError."""
        ...

    async def score(
        self, tokens: tuple[int, ...], top: int, *, with_ranks: bool, salt: str = ""
    ) -> list[Sampled | None]:
        """Return the log-probability of each token, None for the first, with the `top` most likely ones. Not called
        where `lacks` has "echo_logprobs", nor `with_ranks` where it has "prompt_logprobs". `salt`: see `Job`. Raises
        UpstreamError."""
        ...

    async def distribution(self, segment: Segment, vocab_size: int) -> tuple[NDArray[np.float32], int | None]:
        """Return the log-probability of each token after those of the segment, float32 [vocabulary], -inf for one that
        is not reported; and how many tokens of the prompt were cached. Called only where `traits` has it. Raises
        UpstreamError."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


async def compute_token(upstream: Upstream) -> None:
    """Let an upstream compute a token, of no use to anyone. Raises UpstreamError."""
    segment = Segment((0,), 0, 1, SamplingParams(temperature=0.0), 0)
    async with aclosing(upstream.generate(segment)) as parts:
        async for _ in parts:
            pass
