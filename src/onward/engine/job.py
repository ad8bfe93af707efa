"""One prompt and the choices wanted of it: fully decided, nothing behind it is checked again."""

from __future__ import annotations

from dataclasses import dataclass

from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules


@dataclass(frozen=True, slots=True)
class Job:
    """What the engine is to do. `prompt` has at least one id, all inside the vocabulary, and
    `len(prompt) + max_tokens` fits the context.

    `id` is unique in the process; jobs of one request share `request`, and fairness is between requests.
    `score_top`: score every prompt token with so many alternatives; None: do not score. `end_tokens` end a choice
    when drawn (empty when the request ignores them). `text_base` and `pending` tell the assembler where the
    completion begins: code points before it, and bytes of a character that the prompt left unfinished. `prediction`
    are tokens that the caller expects the choices to have: they may make the job faster, never change a token.
    `repeatable`: whether asking again gives the same, because of a seed or because nothing is left to chance.
    """

    id: int
    request: int
    prompt: tuple[int, ...]
    choices: int
    max_tokens: int
    sampling: SamplingParams
    rules: TextRules
    end_tokens: frozenset[int]
    min_tokens: int = 0
    score_top: int | None = None
    text_base: int = 0
    pending: bytes = b""
    prediction: tuple[int, ...] = ()
    repeatable: bool = True
