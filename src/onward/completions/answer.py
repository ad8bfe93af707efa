"""What goes up through the waist, in no API's shapes: a running completion, and the deltas that it yields, each the new
text and tokens of a choice, and why it ended; then token counts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import msgspec

from onward.offload import breathe
from onward.sampling.outputs import Sampled
from onward.text.assembler import Alternative, TokenRecord

FinishReason = Literal["stop", "length", "content_filter"]


class Finish(NamedTuple):
    """Why a choice ended. `stop` is what ended it for the reason "stop": the stop string, or the id of the end token.
    None for other reasons."""

    reason: FinishReason
    stop: str | int | None = None

    @property
    def stop_string(self) -> str:
        """The stop string that ended the choice; "" where an end token or something else did."""
        return self.stop if isinstance(self.stop, str) else ""


ScoredToken = tuple[int, bytes, float | None, int, tuple[Alternative, ...]]
"""A token of a prompt: its id, bytes, log probability (None for the first one), its rank among all tokens in its place,
from 1, or 0 where it was not counted, and alternatives. A plain tuple: prompts have hundreds of thousands."""


@dataclass(slots=True)
class PromptRecord:
    """The prompt of a choice. All choices of a prompt share it.

    `text` and the last `len(token_bytes)` of `tokens` are what the client sent; implicit start tokens come before
    those. With a suffix, `tokens` has the infill tokens. `scores` has an entry per token if the request asks for log
    probabilities of the prompt, which can be hundreds of thousands. `keep` returns the alternatives that may be sent.
    """

    text: str
    tokens: Sequence[int]
    token_bytes: Sequence[bytes]
    scores: Sequence[Sampled | None] | None
    vocabulary_bytes: Callable[[int], bytes]
    keep: Callable[[tuple[Alternative, ...]], tuple[Alternative, ...]] | None = None

    @property
    def num_implicit(self) -> int:
        """Number of tokens at the start that the client did not send."""
        return len(self.tokens) - len(self.token_bytes)

    def scored_text(self, num_top: int) -> Iterator[ScoredToken]:
        """Yield the tokens that the client sent with at most `num_top` alternatives each. Takes a microsecond for each
        of these: any thread may iterate. Raises ValueError if there are not as many scores."""
        scores = (self.scores or ())[self.num_implicit :]
        rows = zip(self.tokens[self.num_implicit :], self.token_bytes, scores, strict=True)
        for index, (token, token_bytes, score) in enumerate(rows):
            breathe()
            if score is None or index == 0:
                yield token, token_bytes, None, 0, ()
            else:
                yield token, token_bytes, score.logprob, score.rank, self._alternatives(score, num_top)

    def scored_tokens(self, num_top: int) -> Iterator[ScoredToken | None]:
        """Yield all tokens as `scored_text` does; None for the first one, which has no log probability."""
        for score in self.scores or ():
            breathe()
            if score is None:
                yield None
            else:
                alternatives = self._alternatives(score, num_top)
                token_bytes = self.vocabulary_bytes(score.token)
                yield score.token, token_bytes, score.logprob, score.rank, alternatives

    def _alternatives(self, score: Sampled, num_top: int) -> tuple[Alternative, ...]:
        found = alternatives_of(score.top[:num_top], self.vocabulary_bytes)
        return found if self.keep is None else self.keep(found)


def alternatives_of(
    top: Iterable[tuple[int, float]], vocabulary_bytes: Callable[[int], bytes]
) -> tuple[Alternative, ...]:
    """Return the alternatives of a token, most likely first."""
    rank = 0
    return tuple([(token, vocabulary_bytes(token), logprob, rank := rank + 1) for token, logprob in top])


class Delta(msgspec.Struct):
    """What one token or several add to the choice `index`: text that can be sent now, and the tokens that belong to it.

    Either may be empty. `finish` is set on the choice's last delta, `prompt` on its first.
    """

    index: int
    text: str
    tokens: list[TokenRecord] = []
    finish: Finish | None = None
    prompt: PromptRecord | None = None


class TokenCounts(msgspec.Struct, frozen=True, gc=False):
    """What a request costs: each prompt once, every generated candidate; end and stop tokens do not count.

    `cached` prompt tokens were found in the prefix cache, `written` were added to it, start tokens too (None: not
    known). `reasoning` and `accepted_prediction` tokens are part of `completion`; `rejected_prediction` tokens were
    drafted from the request's prediction and are not. `computed` tokens came from the engine: also those of discarded
    candidates, end tokens, and what a stop string, a filter or the client's leaving cut off.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    accepted_prediction: int = 0
    rejected_prediction: int = 0
    written: int | None = 0
    computed: int = 0


class Answer(Protocol):
    """A running completion. Iterate it once for its deltas, then read `counts`.

    Iteration raises ApiError or RequestRejected if generation fails. `aclose` and `abandon` cancel what is still
    running; they may be called at any time and repeatedly, and never raise.
    """

    model: str
    """The model's id, with aliases resolved."""
    fingerprint: str
    """`system_fingerprint`: changes exactly when results may change."""
    seed: int
    """The one that its sampling uses, named or drawn."""
    warning: str
    """A sentence for the client about what it probably did not intend; "" if there is none."""

    @property
    def counts(self) -> TokenCounts:
        """Token counts so far; final when iteration has ended."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether nothing follows what was yielded last, neither deltas nor an error: `counts` are final."""
        ...

    def __aiter__(self) -> AsyncIterator[list[Delta]]:
        """Yield the deltas of each engine step. The last one of each index has a `finish`, the first one its prompt."""
        ...

    async def aclose(self) -> None:
        """Cancel the completion. An iteration that waits in another task raises RequestCancelled."""
        ...

    def abandon(self) -> None:
        """Cancel a completion that is no longer reachable.

        May be called from any thread and from the garbage collector: it neither blocks nor takes a lock.
        """
        ...


def merged(deltas: Iterable[Delta]) -> list[Delta]:
    """Return one delta per choice, by index: a step may have several tokens of one. Nothing is modified."""
    whole: dict[int, Delta] = {}
    for delta in deltas:
        known = whole.get(delta.index)
        if known is None:
            whole[delta.index] = delta
        else:
            whole[delta.index] = Delta(
                delta.index,
                known.text + delta.text,
                known.tokens + delta.tokens,
                delta.finish or known.finish,
                known.prompt or delta.prompt,
            )
    return [whole[index] for index in sorted(whole)]
