"""One row of work: a prompt being read, or one choice being written."""

from __future__ import annotations

from onward.engine.drafts import Drafter, Guess
from onward.engine.job import Job
from onward.engine.model import BLOCK_TOKENS
from onward.sampling.choice import ChoiceSampler
from onward.sampling.outputs import Sampled
from onward.text.assembler import Assembler


class Sequence:
    """Tokens, KV blocks and state of one choice. The first choice of a job reads the prompt for all of them.

    `tokens` are prompt and generated tokens; keys and values of the first `computed` are in `blocks`. A sequence
    is reading until its prompt is computed, then writing; a preempted one reads its prompt again and then
    replays its generated tokens as rows of one token, as the decode steps that first made them (same kernels, same
    bits).
    """

    __slots__ = (
        "assembler",
        "awaited",
        "blocks",
        "brief",
        "chain",
        "choice",
        "computed",
        "drafter",
        "foretold",
        "id",
        "job",
        "mistaken",
        "reported",
        "reused",
        "sampler",
        "scores",
        "tokens",
        "unforked",
        "unread",
    )

    def __init__(self, job: Job, choice: int, sequence_id: int, chain: tuple[int, ...] = ()) -> None:
        self.id = sequence_id
        self.job = job
        self.choice = choice
        self.tokens: list[int] = list(job.prompt)
        self.computed = 0
        self.blocks: list[int] = []
        self.sampler = ChoiceSampler(job.sampling, choice)
        self.assembler = Assembler(job.rules, job.text_base, job.pending)
        self.scores: list[Sampled | None] | None = None
        self.unforked = 0
        """Choices of the job still to be forked from this sequence once its prompt is read."""
        self.reported = choice > 0
        """Whether the engine has told that the prompt is read: once a job, by its first choice."""
        self.chain = chain
        """A hash for each shareable block of the prompt (see `chain_of`); () where prefixes are not shared."""
        self.brief = False
        """Whether little of the prompt was left to read when the sequence began to wait (pacing.BRIEF)."""
        self.reused: int | None = None
        """Prompt tokens that were in the cache when the prompt was admitted first; None before that."""
        self.awaited: int | None = None
        """The deepest block of `chain` that another sequence is computing and this one waits for."""
        self.unread: tuple[int, ...] = ()
        """The part of `chain` that this sequence is computing."""
        self.drafter: Drafter | None = None
        """Guesses what comes next, from the time when the prompt is read; None as long or where nothing is guessed."""
        self.foretold = 0
        self.mistaken = 0
        """As `events.Piece` counts them."""

    @property
    def prompt_length(self) -> int:
        return len(self.job.prompt)

    @property
    def next_length(self) -> int:
        """Tokens with the next one, if there may be one."""
        return min(len(self.tokens) + 1, len(self.job.prompt) + self.job.max_tokens)

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.job.prompt)

    @property
    def reading(self) -> bool:
        """Whether part of the prompt is still to be computed."""
        return self.computed < len(self.job.prompt)

    @property
    def replaying(self) -> bool:
        """Whether the next decode step only rebuilds keys and values of tokens drawn before a preemption."""
        return not self.reading and self.computed < len(self.tokens) - 1

    @property
    def wants_scores(self) -> bool:
        """Whether the prompt's tokens are still to be scored by this sequence."""
        return self.job.score_top is not None and not self.reported

    @property
    def blocks_short(self) -> int:
        """How many more blocks the next token needs (0 or 1)."""
        return int(self.computed >= len(self.blocks) * BLOCK_TOKENS)

    def guess(self, floor: float) -> Guess | None:
        """Tokens that may follow, no more than the choice may still have before its last one; see Drafter, which must
        have followed the newest."""
        room = len(self.job.prompt) + self.job.max_tokens - len(self.tokens) - 1
        if self.drafter is None or room <= 0 or self.computed < len(self.tokens) - 1:
            return None
        return self.drafter.guess(room, floor)

    def __repr__(self) -> str:
        return f"<Sequence {self.id} job {self.job.id}.{self.choice} {self.computed}/{len(self.tokens)}>"


def shareable_tokens(prompt_length: int) -> int:
    """How many leading tokens of a prompt may come from the cache.

    At least two prompt tokens are left to compute: the last one's logits are needed, and a lone token would go
    through the decode kernel, whose bits differ from prefill's.
    """
    return max(0, prompt_length - 2)


def shareable_blocks(prompt_length: int) -> int:
    """How many leading blocks of a prompt may come from the cache as they are."""
    return shareable_tokens(prompt_length) // BLOCK_TOKENS


def chain_of(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """A hash for each shareable block of a prompt that stands for the block and all before it."""
    chain: list[int] = []
    link = 0
    for index in range(shareable_blocks(len(prompt))):
        link = hash((link, prompt[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]))
        chain.append(link)
    return tuple(chain)
