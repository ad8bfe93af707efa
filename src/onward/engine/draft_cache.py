"""What the cache of a draft model holds: tokens of one sequence, of which the next one keeps those that it has, too."""

from __future__ import annotations

from dataclasses import dataclass, field

from onward.engine.sequence import Sequence


@dataclass(slots=True)
class DraftCache:
    """The tokens whose keys and values are in the draft model's cache, and for which sequence they were compared."""

    tokens: list[int] = field(default_factory=list)
    begin: int = 0
    """The index in that sequence of the first of them."""
    sequence: int = -1
    salt: str = ""
    """That of its job: only jobs with the same one may find out, by the time they take, what others have sent."""
    num_compared: int = 0
    """The first tokens that are known to be those of that sequence."""
    is_partial: bool = False
    """Whether the sequence's other tokens follow in the next steps."""
    has_state: bool = False
    """Whether a state has processed them, so that none is of use without the others."""

    @property
    def end(self) -> int:
        """The index in that sequence after the last of them."""
        return self.begin + len(self.tokens)

    def keep_common(self, sequence: Sequence) -> None:
        """Forget the tokens from the first one on that the sequence does not have, and its newest one, whose logits are
        wanted."""
        wanted = sequence.tokens
        if self.salt != sequence.job.salt:
            self.tokens.clear()
            self.salt = sequence.job.salt
        is_same = self.sequence == sequence.id
        self.is_partial = self.is_partial and is_same
        end = min(self.num_compared, len(self.tokens)) if is_same else 0
        limit = max(0, min(len(self.tokens), len(wanted) - 1 - self.begin))
        while end < limit and self.tokens[end] == wanted[self.begin + end]:
            end += 1
        end = min(end, limit)
        if self.has_state and end < len(self.tokens):
            end = 0
        del self.tokens[end:]
        self.begin = self.begin if end else 0
        self.sequence, self.num_compared = sequence.id, end

    def begin_at(self, index: int) -> None:
        """Begin anew with the token of the sequence at this index."""
        self.tokens.clear()
        self.begin, self.num_compared = index, 0

    def evaluation_failed(self) -> None:
        """Forget what may not be there any more: a state may have processed tokens that are not among these."""
        if self.has_state:
            self.tokens.clear()
