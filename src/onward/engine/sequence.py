"""One choice on its way through the engine: its tokens, KV blocks and state."""

from __future__ import annotations

from onward.engine.drafter import Drafter, Proposal
from onward.engine.job import Job, ResumedChoice
from onward.sampling.choice import ChoiceSampler
from onward.sampling.outputs import Sampled
from onward.text.assembler import Assembler


class Sequence:
    """One choice of a job. The job's first unfinished choice computes the prompt for all of them (the leader).

    `tokens` are prompt and generated tokens; keys and values of the first `computed` are in `blocks`. A sequence is
    prefilling until its prompt is computed, then decoding. A preempted or resumed one prefills its prompt and then
    replays its generated tokens as rows of one token, as the decode steps that first computed them: same kernels, same
    bits. Engine thread only.
    """

    __slots__ = (
        "assembler",
        "block_hashes",
        "blocks",
        "choice",
        "computed",
        "drafter",
        "forks_pending",
        "id",
        "is_short",
        "job",
        "num_accepted",
        "num_cached_tokens",
        "num_rejected",
        "prefill_reported",
        "prefilling_hashes",
        "sampler",
        "scores",
        "tokens",
        "waits_for",
    )

    def __init__(self, job: Job, choice: int, sequence_id: int, block_hashes: tuple[int, ...] = ()) -> None:
        self.id = sequence_id
        self.job = job
        self.choice = choice
        self.tokens: list[int] = list(job.prompt)
        self.computed = 0
        self.blocks: list[int] = []
        self.sampler = ChoiceSampler(job.sampling, choice)
        self.assembler: Assembler | None = None
        """Finds stop sequences, from the end of prefill on; None before, and for a job without any. The text that
        clients get is assembled above the engine."""
        self.scores: list[Sampled | None] | None = None
        self.forks_pending: list[int] = []
        """Choices of the job still to be forked from this sequence once its prompt is computed."""
        self.prefill_reported = job.resume is not None
        """Whether Prefilled was emitted for this choice's job, or need not be: once per job, by its leader."""
        self.block_hashes = block_hashes
        """A hash per shareable block of the prompt (`hash_blocks`); () where prefixes are not shared."""
        self.is_short = False
        """Whether little of the prompt was left to compute when the sequence began to wait."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens that came from the cache when the sequence was admitted first; None before that."""
        self.waits_for: int | None = None
        """The deepest of `block_hashes` that another sequence is computing and this one waits for."""
        self.prefilling_hashes: tuple[int, ...] = ()
        """The part of `block_hashes` that this sequence is computing."""
        self.drafter: Drafter | None = None
        """Drafts what comes next, from the end of prefill on; None before, and where nothing is drafted."""
        self.num_accepted = self.num_rejected = 0
        """Tokens drafted from the prediction, as `events.Decoded` counts them."""
        resumed = job.resumed(choice)
        if resumed is not None:
            self._resume(resumed)

    def _resume(self, resumed: ResumedChoice) -> None:
        """Take over what an earlier engine sampled."""
        self.tokens += resumed.tokens
        for token in resumed.tokens:
            self.sampler.accept(token)
        self.num_accepted = resumed.num_accepted_prediction_tokens
        self.num_rejected = resumed.num_rejected_prediction_tokens

    @property
    def prompt_length(self) -> int:
        return len(self.job.prompt)

    @property
    def next_length(self) -> int:
        """Tokens including the next one, if there may be one."""
        return min(len(self.tokens) + 1, len(self.job.prompt) + self.job.max_tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.job.prompt)

    @property
    def is_prefilling(self) -> bool:
        """Whether part of the prompt is still to be computed."""
        return self.computed < len(self.job.prompt)

    @property
    def is_replaying(self) -> bool:
        """Whether the next decode step only rebuilds keys and values of tokens that were sampled before."""
        return not self.is_prefilling and self.computed < len(self.tokens) - 1

    @property
    def wants_scores(self) -> bool:
        """Whether the prompt's tokens are still to be scored by this sequence."""
        return self.job.score_top is not None and not self.prefill_reported

    @property
    def wants_first_token(self) -> bool:
        """Whether the logits at the prompt's end are needed: by this choice, or by one to be forked from it."""
        if not self.num_generated:
            return True
        return any(not (resumed := self.job.resumed(choice)) or not resumed.tokens for choice in self.forks_pending)

    def propose_draft(self, min_probability: float) -> Proposal | None:
        """Tokens that may follow, no more than the choice may still have before its last one. The drafter must have
        followed the newest token (`Drafter.follow`)."""
        room = len(self.job.prompt) + self.job.max_tokens - len(self.tokens) - 1
        if self.drafter is None or room <= 0 or self.computed < len(self.tokens) - 1:
            return None
        return self.drafter.propose(room, min_probability)

    def __repr__(self) -> str:
        return f"<Sequence {self.id} job {self.job.id}.{self.choice} {self.computed}/{len(self.tokens)}>"


def shareable_tokens(prompt_length: int) -> int:
    """How many leading tokens of a prompt may come from the cache.

    At least two prompt tokens are left to compute: the last one's logits are needed, and a lone token would go
    through the decode kernel, whose bits differ from prefill's.
    """
    return max(0, prompt_length - 2)


def hash_blocks(prompt: tuple[int, ...], block_tokens: int) -> tuple[int, ...]:
    """A hash per shareable full block of a prompt, which stands for the block and all before it."""
    hashes: list[int] = []
    prefix_hash = 0
    for index in range(shareable_tokens(len(prompt)) // block_tokens):
        prefix_hash = hash((prefix_hash, prompt[index * block_tokens : (index + 1) * block_tokens]))
        hashes.append(prefix_hash)
    return tuple(hashes)
