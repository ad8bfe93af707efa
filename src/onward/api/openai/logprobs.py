"""The `logprobs` of a choice (behaviour §2.7), and `prompt_logprobs` in vLLM's shape
(entrypoints/openai/completion)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from onward.api.numbers import wire_number
from onward.api.openai.response import Logprobs, PromptLogprob
from onward.completions.delta import PromptRecord
from onward.text.assembler import Alternative, TokenRecord
from onward.text.offsets import token_offsets
from onward.text.rendering import render_token

PromptLogprobs = list[dict[int, PromptLogprob] | None]


class LogprobsBuilder:
    """Builds Logprobs objects from token records.

    `num_top` is the request's `logprobs`. With `as_ids`, tokens are named `token_id:N`.
    """

    def __init__(self, num_top: int, as_ids: bool) -> None:
        self._num_top = num_top
        self._as_ids = as_ids

    def empty(self) -> Logprobs:
        """Return an object without entries."""
        return Logprobs(tokens=[], token_logprobs=[], top_logprobs=[] if self._num_top else None, text_offset=[])

    def generated(self, records: Sequence[TokenRecord]) -> Logprobs:
        """Return the object for sampled tokens."""
        logprobs = self.empty()
        for record in records:
            self._add(logprobs, record.token, record.token_bytes, record.offset, record.logprob, record.alternatives)
        return logprobs

    def prompt(self, prompt: PromptRecord) -> Logprobs:
        """Return the object for an echoed prompt; its first token has no log probability. May run on any thread."""
        logprobs = self.empty()
        for scored, offset in zip(prompt.scored_text(self._num_top), token_offsets(prompt.token_bytes), strict=True):
            token, token_bytes, logprob, _, alternatives = scored
            self._add(logprobs, token, token_bytes, offset, logprob, alternatives)
        return logprobs

    def _add(
        self,
        logprobs: Logprobs,
        token: int,
        token_bytes: bytes,
        offset: int,
        logprob: float | None,
        top: tuple[Alternative, ...],
    ) -> None:
        name = self._name(token, token_bytes)
        logprobs.tokens.append(name)
        logprobs.text_offset.append(offset)
        number = alternatives = None
        if logprob is not None:
            number = wire_number(logprob)
            alternatives = self._alternatives(name, number, top) if self._num_top else None
        logprobs.token_logprobs.append(number)
        if logprobs.top_logprobs is not None:
            logprobs.top_logprobs.append(alternatives)

    def _alternatives(self, name: str, own: float, top: tuple[Alternative, ...]) -> dict[str, float]:
        """Return the token itself, then the alternatives from most to least likely.

        `own` is the token's value in `token_logprobs`. Of alternatives with the same text, the likeliest counts.
        """
        alternatives = {name: own}
        for token, token_bytes, value, _ in top:
            other = self._name(token, token_bytes)
            number = wire_number(value)
            if other != name and number > alternatives.get(other, -math.inf):
                alternatives[other] = number
        return alternatives

    def _name(self, token: int, token_bytes: bytes) -> str:
        return f"token_id:{token}" if self._as_ids else render_token(token_bytes)


def prompt_logprobs(prompt: PromptRecord, num_top: int) -> PromptLogprobs:
    """Return an entry per token that the model was prompted with: the prompt's token, then the most likely others, best
    first. May run on any thread."""
    entries: PromptLogprobs = []
    for scored in prompt.scored_tokens(num_top):
        if scored is None or scored[2] is None:
            entries.append(None)
            continue
        own, own_bytes, own_logprob, own_rank, alternatives = scored
        entry = {own: PromptLogprob(wire_number(own_logprob), own_rank, render_token(own_bytes))}
        for token, token_bytes, logprob, rank in alternatives:
            if token != own:
                entry[token] = PromptLogprob(wire_number(logprob), rank, render_token(token_bytes))
        entries.append(entry)
    return entries


def extend(whole: Logprobs, part: Logprobs) -> None:
    """Append the entries of `part` to `whole`, in place."""
    whole.tokens += part.tokens
    whole.token_logprobs += part.token_logprobs
    whole.text_offset += part.text_offset
    if whole.top_logprobs is not None and part.top_logprobs is not None:
        whole.top_logprobs += part.top_logprobs
