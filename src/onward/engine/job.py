"""One prompt and the choices wanted of it: fully decided, nothing behind it is checked again."""

from __future__ import annotations

from dataclasses import dataclass

from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules


@dataclass(frozen=True, slots=True)
class ResumedChoice:
    """Where a choice of a resumed job goes on: the tokens sampled so far, and its prediction counts (see Decoded)."""

    tokens: tuple[int, ...] = ()
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Job:
    """What an engine is to compute. `prompt` has at least one id, all inside the vocabulary, and
    `len(prompt) + max_tokens` fits the context.

    `id` is unique per engine; jobs of one request share `request`, and fairness is between requests.
    `score_top`: score every prompt token, with that many alternatives; None: do not score. `end_tokens` finish a choice
    when sampled (empty when the request ignores them). `rules` and `pending` (bytes of a character that the prompt left
    unfinished) let the engine find stop sequences. `prediction` are tokens that the caller expects: they may make the
    job faster and never change a token. `repeatable`: whether the same request gives the same result again, because
    of a seed or because nothing is random. `resume`: for a job that was submitted before and whose Prefilled was
    delivered, the state of each choice, None for a finished one; what was sampled is replayed, not reported again.

    Encodable by msgspec, like everything in it.
    """

    id: int
    request: int
    prompt: tuple[int, ...]
    num_choices: int
    max_tokens: int
    sampling: SamplingParams
    rules: TextRules
    end_tokens: frozenset[int]
    min_tokens: int = 0
    score_top: int | None = None
    pending: bytes = b""
    prediction: tuple[int, ...] = ()
    repeatable: bool = True
    resume: tuple[ResumedChoice | None, ...] | None = None

    @property
    def unfinished_choices(self) -> list[int]:
        """The choices that are still to be computed, at least one."""
        if self.resume is None:
            return list(range(self.num_choices))
        return [index for index, choice in enumerate(self.resume) if choice is not None]

    def resumed(self, choice: int) -> ResumedChoice | None:
        """Where a choice goes on, None for a job that was not submitted before."""
        return None if self.resume is None else self.resume[choice]
