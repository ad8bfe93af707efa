"""Token ids, texts and log probabilities of a part of a choice, for APIs that list them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onward.protocol.response import Choice, Logprobs

ID_PREFIX = "token_id:"
"""How `return_tokens_as_token_ids` names tokens: such a request's log probabilities have ids instead of texts."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A generated token, its log probability, and those of the most likely tokens by id, most likely first.

    `offset`: code points before it, of prompt and completion.
    """

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]
    offset: int


def token_records(choice: Choice, num_top: int) -> list[TokenRecord]:
    """Return the records of a part whose request has `logprobs` and `return_tokens_as_token_ids`."""
    logprobs = choice.logprobs
    if logprobs is None:
        return []
    return [
        TokenRecord(
            _token(name), logprobs.token_logprobs[index], _top(logprobs, index, num_top), logprobs.text_offset[index]
        )
        for index, name in enumerate(logprobs.tokens)
    ]


def all_tokens(records: Iterable[TokenRecord]) -> list[int]:
    """Return the ids of all tokens that the records name."""
    return [token for record in records for token in (record.token, *(top for top, _ in record.top))]


def _token(name: str) -> int:
    return int(name.removeprefix(ID_PREFIX))


def _top(logprobs: Logprobs, index: int, num_top: int) -> tuple[tuple[int, float], ...]:
    alternatives = logprobs.top_logprobs[index] if logprobs.top_logprobs else None
    if not alternatives or not num_top:
        return ()
    ranked: Sequence[tuple[str, float]] = sorted(alternatives.items(), key=lambda item: -item[1])
    return tuple((_token(name), value) for name, value in ranked[:num_top])


def cut_stop(text: str, stops: Iterable[str]) -> tuple[str, str]:
    """Return the text of a choice that has stopped without the stop string at its end, and that; empty where an end
    token stopped it. For requests with `include_stop_str_in_output`."""
    for stop in sorted(stops, key=len, reverse=True):
        if text.endswith(stop):
            return text[: -len(stop)], stop
    return text, ""
