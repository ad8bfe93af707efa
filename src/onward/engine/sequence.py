"""A sequence: one choice in the engine, with its tokens, KV blocks and state."""

from __future__ import annotations

from onward.constraints.choice import ChoiceConstraint, Compiled
from onward.engine.choice_end import ChoiceEnd
from onward.engine.draft_budget import DraftBudget
from onward.engine.drafter import MAX_DRAFT_TOKENS, Drafter, Proposal
from onward.engine.job import Job, ResumedChoice
from onward.sampling.choice import ChoiceSampler
from onward.sampling.outputs import Sampled


class Sequence:
    """One choice of a job. The job's first unfinished choice computes the prompt for all of them (the leader).

    `tokens` are prompt and generated tokens; keys and values of the first `computed` are in `blocks`. A sequence is
    prefilling until its prompt is computed, then decoding. A preempted or resumed one prefills its prompt again and
    replays its generated tokens as rows of one token, by the kernel that computed them first: so they have the same
    bits. Engine thread only.
    """

    __slots__ = (
        "began",
        "block_hashes",
        "blocks",
        "choice",
        "computed",
        "constraint",
        "draft_budget",
        "drafter",
        "end",
        "era",
        "forks_pending",
        "grammar",
        "id",
        "is_short",
        "job",
        "num_accepted",
        "num_cached_tokens",
        "num_rejected",
        "num_written_tokens",
        "prefill_reported",
        "prefilling_hashes",
        "sampler",
        "scores",
        "shared_end",
        "snapshot_ends",
        "state",
        "tokens",
        "waits_for",
        "written_end",
    )

    def __init__(self, job: Job, choice: int, sequence_id: int, block_hashes: tuple[int, ...] = ()) -> None:
        self.id = sequence_id
        self.job = job
        self.choice = choice
        self.tokens: list[int] = list(job.prompt)
        self.computed = 0
        self.began = 0.0
        """When the step began that computed the first tokens of its prompt, by `time.perf_counter`; 0 before it."""
        self.blocks: list[int] = []
        self.state = -1
        """The state of the sequence, of models that have some (`states.States`); -1: none."""
        self.snapshot_ends: list[int] = []
        """Numbers of prompt tokens after which a snapshot of the state is made, ascending."""
        self.shared_end = 0
        """The one of them up to which the prompt had been computed before, when it was admitted."""
        self.sampler = ChoiceSampler(job.sampling, choice, job.prompt if job.sampling.dry else ())
        self.era = 0
        """That of the cache (`KVCache.era`) when the job was queued."""
        self.end: ChoiceEnd | None = None
        """None before the end of prefill."""
        self.grammar: Compiled | None = None
        """The job's grammar, compiled; None if it has none."""
        self.constraint: ChoiceConstraint | None = None
        """None before the end of prefill, and for a job without a grammar."""
        self.scores: list[Sampled | None] | None = None
        self.forks_pending: list[int] = []
        """Choices of the job still to be forked from this sequence once its prompt is computed."""
        self.prefill_reported = job.resume is not None
        """Whether Prefilled was emitted for the job, or need not be for this sequence: the leader emits it, once."""
        self.block_hashes = block_hashes
        """A hash per shareable block of the prompt (`hash_blocks`); () if prefixes are not shared."""
        self.is_short = False
        """Whether the prompt was short when the sequence was queued (admission.SHORT_PROMPT_TOKENS)."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens that came from the cache when the sequence was first admitted; None before that."""
        self.num_written_tokens = self.written_end = 0
        """Prompt tokens that this sequence added to the cache, and the end of the last of them."""
        self.waits_for: int | None = None
        """The deepest of `block_hashes` that another sequence is computing and this one waits for."""
        self.prefilling_hashes: tuple[int, ...] = ()
        """The part of `block_hashes` that this sequence is computing."""
        self.drafter: Drafter | None = None
        """None before the end of prefill, and without speculation."""
        self.draft_budget = DraftBudget()
        self.num_accepted = self.num_rejected = 0
        """Accepted and rejected tokens of the prediction, as in `events.Decoded`."""
        resumed = job.resumed(choice)
        if resumed is not None:
            self._resume(resumed)

    def _resume(self, resumed: ResumedChoice) -> None:
        """Continue from the state that an earlier engine reported."""
        self.tokens += resumed.tokens
        for token in resumed.tokens:
            self.sampler.accept(token)
        self.sampler.restore(resumed.mu)
        self.num_accepted = resumed.num_accepted_prediction_tokens
        self.num_rejected = resumed.num_rejected_prediction_tokens

    def count_written(self, begin: int, end: int) -> None:
        """Count the prompt's tokens from `begin` to `end` as added to the cache, except those that came from it or were
        added before."""
        begin = max(begin, self.num_cached_tokens or 0, self.written_end)
        self.num_written_tokens += max(0, end - begin)
        self.written_end = max(self.written_end, end)

    @property
    def prompt_length(self) -> int:
        return len(self.job.prompt)

    @property
    def next_length(self) -> int:
        """Number of tokens including the next one, if there may be one."""
        return min(len(self.tokens) + 1, len(self.job.prompt) + self.job.max_tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.job.prompt)

    @property
    def is_prefilling(self) -> bool:
        """Whether part of the prompt has not been computed."""
        return self.computed < len(self.job.prompt)

    @property
    def num_to_prefill(self) -> int:
        """Number of prompt tokens that may be computed at once: those left, or those before the next snapshot."""
        left = self.prompt_length - self.computed
        return next((end - self.computed for end in self.snapshot_ends if end > self.computed), left)

    @property
    def is_replaying(self) -> bool:
        """Whether the next decode step recomputes tokens that were sampled before, and samples nothing."""
        return not self.is_prefilling and self.computed < len(self.tokens) - 1

    @property
    def is_held(self) -> bool:
        """Whether the sequence waits for what its grammar allows next."""
        return self.constraint is not None and self.constraint.is_unsettled

    @property
    def wants_scores(self) -> bool:
        """Whether this sequence scores the prompt's tokens."""
        return self.job.score_top is not None and not self.prefill_reported

    @property
    def wants_first_token(self) -> bool:
        """Whether the logits at the prompt's end are needed, for this choice or for one to be forked from it."""
        if not self.num_generated:
            return True
        return any(not (resumed := self.job.resumed(choice)) or not resumed.tokens for choice in self.forks_pending)

    @property
    def draft_room(self) -> int:
        """How many tokens may be drafted after the newest one: fewer than the choice may still have, and none while it
        replays."""
        if self.computed < len(self.tokens) - 1:
            return 0
        if self.job.sampling.mirostat is not None:
            return 0  # what a token may be depends on how likely the one before it was
        return max(0, len(self.job.prompt) + self.job.max_tokens - len(self.tokens) - 1)

    def propose_draft(self, max_tokens: int, min_probability: float) -> Proposal | None:
        """Return at most so many drafted tokens, fewer than the choice may still have; None if there are none. The
        drafter must have processed the newest token (`Drafter.follow`)."""
        room = min(self.draft_room, max_tokens)
        if self.drafter is None or not room:
            return None
        if self.constraint is not None:
            return self._constrained_draft(self.constraint, self.drafter, room, min_probability)
        return self.drafter.propose(room, min_probability)

    def _constrained_draft(
        self, constraint: ChoiceConstraint, drafter: Drafter, room: int, min_probability: float
    ) -> Proposal | None:
        """As `propose_draft`: the tokens that must come next, else what the drafter proposes, as far as it is
        allowed."""
        tokens = constraint.forced_tokens()[: min(room, MAX_DRAFT_TOKENS)]
        if tokens:
            return Proposal(tokens, [1.0] * len(tokens), "grammar") if min_probability < 1.0 else None
        found = drafter.propose(room, min_probability)
        count = constraint.count_valid(found.tokens) if found else 0
        return Proposal(found.tokens[:count], found.probabilities[:count], found.source) if found and count else None

    def __repr__(self) -> str:
        return f"<Sequence {self.id} job {self.job.id}.{self.choice} {self.computed}/{len(self.tokens)}>"


def shareable_tokens(prompt_length: int) -> int:
    """Return how many leading tokens of a prompt may come from the cache.

    At least two prompt tokens are always computed: the logits of the last one are needed, and a single token would go
    through the decode kernel, whose bits differ from those of prefill.
    """
    return max(0, prompt_length - 2)


def hash_blocks(prompt: tuple[int, ...], block_tokens: int, salt: str) -> tuple[int, ...]:
    """Return a hash per shareable full block of a prompt, each over the salt, the block and all before it."""
    hashes: list[int] = []
    prefix_hash = hash(salt)
    for index in range(shareable_tokens(len(prompt)) // block_tokens):
        prefix_hash = hash((prefix_hash, prompt[index * block_tokens : (index + 1) * block_tokens]))
        hashes.append(prefix_hash)
    return tuple(hashes)
