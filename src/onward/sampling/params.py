"""Sampling parameters: frozen and fully resolved. No field is optional unless its absence means something."""

from __future__ import annotations

from dataclasses import dataclass

from onward.sampling.filters import COMMON, DEFAULT_ORDER, FILTERS, PARAMETERS


@dataclass(frozen=True, slots=True)
class Dry:
    """Parameters of sampling.dry. `last_n`: how many of the last tokens it looks at; -1: all. `breakers`: token ids,
    sorted."""

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    last_n: int = -1
    breakers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mirostat:
    """Parameters of mirostat (sampling.ranked_draws): `tau` is the surprise to aim at, in bits; `eta` how fast to
    correct. `version` is 1 or 2."""

    version: int = 2
    tau: float = 5.0
    eta: float = 0.1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of one job, shared by its choices.

    `seed` is always a number (0 ≤ seed < 2**64), a random one if the request has none. A sampled token is a function
    of (seed, choice, position) and the logits alone. `top_k` 0, `top_p` 1.0 and `min_p` 0.0 mean "off".
    The penalties count the last `penalty_last_n` generated tokens, all where it is -1; those of `unpenalized_tokens`
    keep their logits.
    `logit_bias` holds (token id, value added to the logit) pairs, sorted by id, without duplicates.
    `allowed_tokens`, if there are any, are the only tokens that may be sampled (sorted, without duplicates);
    `banned_tokens` never are. The last token of each of `banned_sequences`, which have two tokens at least, is banned
    where the generated tokens end with those before it.
    `logprobs` is how many of the most likely tokens to report with each sampled one; None: report nothing.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    penalty_last_n: int = -1
    unpenalized_tokens: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_tokens: tuple[int, ...] = ()
    banned_tokens: tuple[int, ...] = ()
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    filters: tuple[tuple[str, float], ...] = ()
    """(name, value) of the parameters of further filters that are not neutral (`filters.optional_values`)."""
    order: tuple[str, ...] = DEFAULT_ORDER
    """The filters in the order in which they act; one that is not listed does not act."""
    dry: Dry | None = None
    """Penalties of repeated sequences; None: off."""
    mirostat: Mirostat | None = None
    """If set, it decides with the temperature which tokens are kept: no filter acts."""
    seed: int = 0
    logprobs: int | None = None

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on which tokens were generated, and how often."""
        return self.penalty_last_n != 0 and (
            self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1
        )

    @property
    def chain(self) -> tuple[str, ...]:
        """The filters that act, in the order in which they do."""
        return tuple(name for name in self.order if FILTERS[name].acts(self.value))

    @property
    def needs_ranking(self) -> bool:
        """Whether the token is sampled from the sorted logits: by the chain or by mirostat."""
        return bool(self.filters) or self.order != DEFAULT_ORDER or self.mirostat is not None

    def value(self, name: str) -> float:
        """Return the value of a filter's parameter."""
        if name in COMMON:
            value: float = getattr(self, name)
            return value
        return next((value for other, value in self.filters if other == name), PARAMETERS[name].neutral)

    @property
    def is_greedy(self) -> bool:
        """Whether these parameters always select the most likely token."""
        if self.mirostat is not None:
            return self.temperature == 0.0
        return self.temperature == 0.0 or self.top_p == 0.0 or self.top_k == 1
