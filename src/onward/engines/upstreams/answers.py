"""What upstreams answer, as typed messages, and whether it is what was asked for.

An upstream is another program, perhaps on another machine: whatever it sends is decoded once, into exactly the fields
that are used, and compared with what was asked, before anything of it is counted or passed on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import TypeVar

import msgspec

from onward.engines.upstreams.base import AnswerPart, Segment, UpstreamError
from onward.sampling.outputs import Sampled

LOST_CODES = frozenset((429, 500, 502, 503, 504))
"""Statuses, and codes of error events, of a server that may answer later, or whose engine is lost."""
REQUEST_CODES = frozenset((400, 413, 422))
"""Those of a request that every server of the model would refuse."""
MAX_REASON_CHARACTERS = 300
ANSWER_BYTES, TOKEN_BYTES, ALTERNATIVE_BYTES, ECHO_BYTES = 1 << 16, 1 << 10, 1 << 9, 1 << 6
"""What an answer may take: in any case; for a token asked for; for an alternative to it; for a token of the prompt,
which some repeat."""
MAX_LOGPROB_ERROR = 1e-3
"""By how much a log-probability may exceed 0: softmax sums are rounded."""
NO_PROBABILITY = -1e30
"""Below it a log-probability is that of a probability of 0: llama-server sends the lowest float32 instead of -inf."""
MAX_CONTEXT_LENGTH, MAX_SLOTS = 1 << 28, 1 << 12
MAX_VOCABULARY = 1 << 19
"""Tokens: beyond all vocabularies."""


class ErrorBody(msgspec.Struct):
    """The fields of an error, in OpenAI's envelope or one like it."""

    message: str | None = None
    code: int | str | None = None


class UpstreamAnswer(msgspec.Struct):
    """An answer or an event; each kind of server has its own."""

    error: ErrorBody | str | None = None


class TokenIds(UpstreamAnswer, kw_only=True):
    """The answer of `/tokenize`, the same in all kinds of servers."""

    tokens: list[int]


T = TypeVar("T")
A = TypeVar("A", bound=UpstreamAnswer)


class Malformed(UpstreamError):
    """An answer has the right types, and is not what was asked for. `what` was sent instead."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the upstream sent {what}.")


def decode(url: str, content: bytes | bytearray, kind: type[A]) -> A:
    """Decode a message. Raises UpstreamError if it is another, or an error."""
    try:
        answer: A = _decoder(kind).decode(content)
    except msgspec.ValidationError as error:
        if kind is not UpstreamAnswer:
            with suppress(Malformed):
                decode(url, content, UpstreamAnswer)
        raise Malformed(f"an answer of another form than was asked for: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        shown = bytes(content[:60]).decode(errors="replace")
        raise UpstreamError(f"{url} did not answer with JSON, but with {shown!r}.") from None
    if answer.error is not None:
        raise _reported(url, answer.error if isinstance(answer.error, ErrorBody) else ErrorBody(answer.error))
    return answer


@cache
def _decoder(kind: type[A]) -> msgspec.json.Decoder[A]:
    return msgspec.json.Decoder(kind)


def _reported(url: str, error: ErrorBody) -> UpstreamError:
    code = _code(error.code)
    return UpstreamError(
        f"{url} refused the request: {printable(error.message or 'no reason given')}",
        is_lost=code in LOST_CODES,
        is_request=code in REQUEST_CODES,
    )


def error_line(url: str, content: bytes) -> UpstreamError:
    """Return the error of a stream's line that begins with "error:", as older builds of llama-server send it."""
    try:
        decode(url, content, UpstreamAnswer)
        return _reported(url, msgspec.json.decode(content, type=ErrorBody))
    except UpstreamError as error:
        return error
    except msgspec.ValidationError:
        return _reported(url, ErrorBody())


def refusal(url: str, status: int, content: bytes) -> UpstreamError:
    """Return the error for an answer with a status other than 200. `content`: the beginning of its body."""
    hint = "; ONWARD_UPSTREAM_KEY is sent as its API key" if status in (401, 403) else ""
    text = f"{url} answered with status {status}{hint}."
    try:
        if content:
            decode(url, content, UpstreamAnswer)
    except UpstreamError as error:
        text = f"{str(error).rstrip('.')} (status {status}{hint})."
    return UpstreamError(text, is_lost=status in LOST_CODES, is_request=status in REQUEST_CODES)


def printable(text: str) -> str:
    """Return the beginning of a text for the log, in one line."""
    shown = "".join(each if each.isprintable() else " " for each in text[: MAX_REASON_CHARACTERS + 1])
    return shown if len(shown) <= MAX_REASON_CHARACTERS else shown[:MAX_REASON_CHARACTERS] + "…"


def answer_bytes(num_tokens: int, num_alternatives: int | None, num_echoed: int = 0) -> int:
    """Return what an answer with so many tokens may take, each with so many alternatives (None: without
    log-probabilities), after a prompt of `num_echoed` tokens."""
    per_token = TOKEN_BYTES + ALTERNATIVE_BYTES * (1 + (num_alternatives or 0))
    return ANSWER_BYTES + num_tokens * per_token + num_echoed * ECHO_BYTES


def segment_bytes(segment: Segment) -> int:
    """Return what an answer to the request of a segment may take."""
    return answer_bytes(segment.max_tokens, segment.sampling.logprobs, len(segment.tokens))


def logprob(value: float | None, *, null_is_zero: bool = False) -> float:
    """Return a log-probability. `null_is_zero`: whether null stands for a probability of 0. Raises Malformed."""
    if value is None:
        if null_is_zero:
            return -math.inf
        raise Malformed("a token without its log-probability")
    if value > 0:
        if value > MAX_LOGPROB_ERROR:
            raise Malformed(f"the log-probability {value:g}")
        return 0.0
    return value if value > NO_PROBABILITY else -math.inf


def cached_tokens(count: int | None, num_prompt: int) -> int | None:
    """Return how many of so many tokens of a prompt were cached, None where it is not said. Raises Malformed."""
    if count is not None and not 0 <= count <= num_prompt:
        raise Malformed(f"a number of {count} cached tokens")
    return count


def context_length(value: int | None) -> int:
    """Return a context length that an upstream reports. Raises Malformed."""
    if value is None or not 1 <= value <= MAX_CONTEXT_LENGTH:
        raise Malformed(f"a context length of {value}")
    return value


def first_model(models: Sequence[T]) -> T:
    """Return the model that an upstream serves. Raises Malformed if there is none."""
    if not models:
        raise Malformed("no model")
    return models[0]


def tokenized(tokens: Iterable[int], text: str) -> list[int]:
    """Return the tokens of a text. Raises Malformed if they cannot be."""
    found = list(tokens)
    if not 0 < len(found) <= 4 * len(text.encode()) or min(found) < 0:
        raise Malformed("what cannot be the tokens of a text")
    return found


def check_part(part: AnswerPart, num_before: int, segment: Segment, vocab_size: int) -> int:
    """Return how many tokens of a segment have come, with those of a part after `num_before` others. Raises
    UpstreamError where they are not what was asked for."""
    count, allowed, num_top = num_before, segment.allowed, segment.sampling.logprobs
    for sampled in part.tokens:
        count += 1
        if count > segment.max_tokens:
            raise Malformed(f"more than the {segment.max_tokens} tokens it was asked for")
        if num_top is not None or sampled.top or not 0 <= sampled.token < vocab_size:
            _check(sampled, num_top, vocab_size)
        is_end_too_soon = count <= segment.min_tokens and sampled.token in segment.end_tokens
        if is_end_too_soon or sampled.token in segment.banned or (allowed is not None and not allowed[sampled.token]):
            raise Malformed(f"token {sampled.token}, which was not allowed there")
    return count


def check_scores(
    scores: list[Sampled | None], prompt: tuple[int, ...], top: int, vocab_size: int, *, with_ranks: bool
) -> None:
    """Raise UpstreamError unless these are the scores of a prompt's tokens."""
    scored = [one for one in scores[1:] if one is not None]
    if scores[:1] != [None] or [one.token for one in scored] != list(prompt[1:]):
        raise Malformed("the scores of other tokens than those of the prompt")
    for sampled in scored:
        _check(sampled, top, vocab_size)
        if with_ranks and not 1 <= sampled.rank <= vocab_size:
            raise Malformed(f"a token of rank {sampled.rank}")


def _check(sampled: Sampled, num_top: int | None, vocab_size: int) -> None:
    """Raise Malformed for tokens that do not exist, or another number of alternatives than was asked for."""
    ids = [sampled.token, *(token for token, _ in sampled.top)]
    if unknown := [token for token in ids if not 0 <= token < vocab_size]:
        raise Malformed(f"token {unknown[0]}, which the tokenizer does not have")
    if num_top is not None and not min(num_top, vocab_size) == len(sampled.top) == len(set(ids[1:])):
        raise Malformed(f"{len(set(ids[1:]))} alternatives to a token instead of {num_top}")


def _code(code: int | str | None) -> int | None:
    if isinstance(code, str):
        return int(code) if code.isascii() and code.isdecimal() and len(code) == 3 else None
    return code
