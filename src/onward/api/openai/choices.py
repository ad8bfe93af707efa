"""From deltas to OpenAI's partial choices: echo, a chunk of its own for `stop`, `logprobs` (behaviour §2.7), and
`prompt_logprobs` in vLLM's shape (entrypoints/openai/completion)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onward.api.numbers import wire_number
from onward.api.openai.response import (
    Choice,
    CompletionTokensDetails,
    Logprobs,
    PromptLogprob,
    PromptTokensDetails,
    Usage,
)
from onward.completions.answer import Delta, PromptRecord, TokenCounts
from onward.completions.request import CompletionRequest
from onward.offload import inline_or_on_thread
from onward.text.assembler import Alternative, TokenRecord
from onward.text.decoding import render_token, token_offsets


@dataclass(slots=True)
class _PromptNumbers:
    """What the choices of one prompt report about it; dropped when all of them have begun, because it can take
    megabytes."""

    logprobs: Logprobs | None
    prompt_logprobs: PromptLogprobs | None
    num_begun: int = 0


class ChoiceParts:
    """Writes the deltas of one answer as partial choices; the last one of an index has a finish_reason."""

    def __init__(self, request: CompletionRequest) -> None:
        self._request = request
        self._builder = (
            None if request.logprobs is None else LogprobsBuilder(request.logprobs, request.return_tokens_as_token_ids)
        )
        self._prompts: dict[int, _PromptNumbers] = {}

    async def write(self, deltas: list[Delta]) -> list[Choice]:
        """Return the partial choices of one step. Many log probabilities of prompts are built on a thread."""
        for delta in deltas:
            if delta.prompt is not None:
                await self.prepare(delta.index, delta.prompt)
        return self.write_prepared(deltas)

    def write_prepared(self, deltas: list[Delta]) -> list[Choice]:
        """Return the partial choices of one step; `prepare` was called for those that begin in it."""
        choices: list[Choice] = []
        for delta in deltas:
            choices += self._parts(delta)
        return choices

    async def prepare(self, choice: int, prompt: PromptRecord) -> None:
        """Build what the request wants to know about the tokens of a choice's prompt, unless that has been done."""
        index = choice // self._request.n
        if index not in self._prompts:
            request, builder = self._request, self._builder

            def build() -> _PromptNumbers:
                echoed = builder.prompt(prompt) if builder is not None and self._echoes(prompt) else None
                scored = None
                if request.prompt_logprobs is not None and prompt.scores is not None:
                    scored = prompt_logprobs(prompt, request.prompt_logprobs)
                return _PromptNumbers(echoed, scored)

            self._prompts[index] = await inline_or_on_thread(self._num_logprobs(prompt), build)

    def _echoes(self, prompt: PromptRecord) -> bool:
        return self._request.echo and prompt.scores is not None

    def _num_logprobs(self, prompt: PromptRecord) -> int:
        """Return how many log probabilities of a prompt are built."""
        request = self._request
        per_token = 0 if request.prompt_logprobs is None else 1 + request.prompt_logprobs
        if request.echo and request.logprobs is not None:
            per_token += 1 + request.logprobs
        return len(prompt.scores or ()) * per_token

    def _parts(self, delta: Delta) -> list[Choice]:
        """Return a delta as one partial choice, or two: `stop` comes in one of its own (behaviour §4)."""
        text, index = delta.text, delta.index
        logprobs = None if self._builder is None else self._builder.generated(self._listed(delta.tokens))
        if self._request.echo and delta.prompt is not None:
            text = delta.prompt.text + text
            logprobs = self._with_prompt(index, logprobs)
        reason = None if delta.finish is None else delta.finish.reason
        if reason != "stop" or not (text or delta.tokens):
            parts = [Choice(text=text, index=index, logprobs=logprobs, finish_reason=reason)]
        else:
            closing = None if self._builder is None else self._builder.empty()
            parts = [
                Choice(text=text, index=index, logprobs=logprobs),
                Choice(text="", index=index, logprobs=closing, finish_reason="stop"),
            ]
        if self._request.return_token_ids:
            for part in parts:
                part.token_ids = []
            parts[0].token_ids = [record.token for record in delta.tokens]
        if delta.prompt is not None:
            self._add_prompt(index, delta.prompt, parts[0])
        return parts

    def _listed(self, records: list[TokenRecord]) -> list[TokenRecord]:
        """Return the records that `logprobs` lists: those after the end of the text only with `echo`."""
        return records if self._request.echo else [record for record in records if not record.is_terminator]

    def _with_prompt(self, index: int, logprobs: Logprobs | None) -> Logprobs | None:
        """Return the prompt's log probabilities followed by those of the completion."""
        known = self._prompts[index // self._request.n].logprobs
        if logprobs is None or self._builder is None or known is None:
            return logprobs
        whole = self._builder.empty()
        extend(whole, known)
        extend(whole, logprobs)
        return whole

    def _add_prompt(self, index: int, prompt: PromptRecord, part: Choice) -> None:
        """Add to a choice's first part what the request wants to know about the prompt's tokens."""
        if self._request.return_token_ids:
            part.prompt_token_ids = list(prompt.tokens)
        known = self._prompts[index // self._request.n]
        if known.prompt_logprobs is not None:
            part.prompt_logprobs = list(known.prompt_logprobs)
        known.num_begun += 1
        if known.num_begun == self._request.n:
            known.logprobs = known.prompt_logprobs = None


def usage_of(counts: TokenCounts) -> Usage:
    """Return token counts in OpenAI's shape."""
    return Usage(
        prompt_tokens=counts.prompt,
        completion_tokens=counts.completion,
        total_tokens=counts.prompt + counts.completion,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=counts.cached,
            text_tokens=counts.prompt,
            # A start token, which is cached too, is not part of the prompt.
            cache_write_tokens=None if counts.written is None else min(counts.written, counts.prompt - counts.cached),
        ),
        completion_tokens_details=CompletionTokensDetails(
            reasoning_tokens=counts.reasoning,
            accepted_prediction_tokens=counts.accepted_prediction,
            rejected_prediction_tokens=counts.rejected_prediction,
            text_tokens=counts.completion,
        ),
    )


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
