"""The `prompt_logprobs` of a choice: vLLM's shape, by token id and with ranks (entrypoints/openai/completion)."""

from __future__ import annotations

from collections.abc import Sequence

from onward.completions.filters import ContentFilters
from onward.completions.logprobs import TokenBytes, wire_number
from onward.offload import breathe
from onward.protocol.response import PromptLogprob
from onward.sampling.outputs import Sampled
from onward.text.rendering import render_token

PromptLogprobs = list[dict[int, PromptLogprob] | None]


class PromptLogprobsBuilder:
    """Builds `prompt_logprobs` from the scores of a prompt with ranks.

    `num_top` is the request's `prompt_logprobs`. Alternatives whose own text is flagged by the content filters are left
    out, as in `logprobs.LogprobsBuilder`.
    """

    def __init__(self, num_top: int, token_bytes: TokenBytes, filters: ContentFilters) -> None:
        self._num_top = num_top
        self._token_bytes = token_bytes
        self._filters = filters

    @property
    def num_per_token(self) -> int:
        """How many log probabilities a token has at most."""
        return 1 + self._num_top

    def build(self, scores: Sequence[Sampled | None]) -> PromptLogprobs:
        """Return an entry per score: the prompt's token, then the most likely others, best first."""
        entries: PromptLogprobs = []
        for score in scores:
            breathe()
            entries.append(None if score is None else self._entry(score))
        return entries

    def _entry(self, score: Sampled) -> dict[int, PromptLogprob]:
        entry = {score.token: PromptLogprob(wire_number(score.logprob), score.rank, self._text(score.token))}
        for rank, (token, logprob) in enumerate(score.top[: self._num_top], 1):
            if token != score.token and not self._is_flagged(token):
                entry[token] = PromptLogprob(wire_number(logprob), rank, self._text(token))
        return entry

    def _is_flagged(self, token: int) -> bool:
        return bool(self._filters) and self._filters.flag(self._token_bytes(token).decode(errors="replace"))

    def _text(self, token: int) -> str:
        return render_token(self._token_bytes(token))
