"""A job: one prompt and the choices to generate from it. Valid when it is made; the engine does not check it again."""

from __future__ import annotations

from dataclasses import dataclass

from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules


@dataclass(frozen=True, slots=True)
class ResumedChoice:
    """State of one choice of a resumed job: the tokens sampled so far, its prediction counts and mirostat's state (see
    Decoded)."""

    tokens: tuple[int, ...] = ()
    num_accepted_prediction_tokens: int = 0
    num_rejected_prediction_tokens: int = 0
    mu: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What an engine computes: `num_choices` choices of at most `max_tokens` tokens each.

    `prompt` has at least one id, all ids are in the vocabulary, and `len(prompt) + max_tokens` is at most the context
    length. `id` is unique per engine; jobs of one request share `request`, and requests take turns in admission.
    `client` is a number for whoever sent the request: clients share the rows of the batch. `score_top`: score every
    prompt token with that many alternatives; None: do not score. `score_ranks`: count the tokens' ranks too.
    `end_tokens` finish a choice when sampled (empty if the request ignores them). `rules` and `pending` (the bytes of
    an incomplete character at the prompt's end) are for finding stop sequences. `prediction` are tokens that the caller
    expects: they can make the job faster, and never change a token. `priority`: of a client's waiting requests, those
    with the lowest number are admitted first. `weight`: of its client, whose share of the rows is in proportion to it
    while others wait. `salt`: only jobs with the same one, and the same `adapter`, share prompt prefixes. `adapter`: id
    of what changes the model's weights for it (`engine.model.AdapterLoader`), "": nothing. `grammar` (see
    `constraints.grammar`) is what every choice's text must match; "": anything. `resume`: for a job that was submitted
    before and whose Prefilled was delivered, the state of each choice, None for a finished one; tokens sampled before
    are replayed and not reported again.

    msgspec can encode it.
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
    score_ranks: bool = False
    pending: bytes = b""
    prediction: tuple[int, ...] = ()
    resume: tuple[ResumedChoice | None, ...] | None = None
    client: int = 0
    grammar: str = ""
    salt: str = ""
    priority: int = 0
    is_background: bool = False
    adapter: str = ""
    weight: int = 1

    @property
    def prefix_salt(self) -> str:
        """What keeps the job's prompt apart from those of other jobs in the prefix cache."""
        return f"{self.adapter}\0{self.salt}" if self.adapter else self.salt

    @property
    def unfinished_choices(self) -> list[int]:
        """The indices of the choices that have not finished, at least one."""
        if self.resume is None:
            return list(range(self.num_choices))
        return [index for index, choice in enumerate(self.resume) if choice is not None]

    def resumed(self, choice: int) -> ResumedChoice | None:
        """The state of a choice that was resumed; None if it has finished, or the job was not submitted before."""
        return None if self.resume is None else self.resume[choice]
