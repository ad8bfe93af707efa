"""Scores texts, several at a time: their tokens, the windows that fit the context, each token's log-probability."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.cli.score.texts import InputText
from onward.cli.source.base import RemoteError, Source, TokenizerFacts
from onward.errors import SetupError
from onward.text.decoding import render_token

CONCURRENCY = 16
"""Texts that are scored at the same time: enough to fill an engine's steps; Ctrl-C loses only these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How texts are scored: `top` alternatives per token, windows of at most `window` tokens (None: the context)."""

    model: str | None
    top: int = 0
    window: int | None = None
    overlap: int = 1
    """How many tokens of the previous window are repeated as the context of the next; 1 as in lm-eval."""


@dataclass(frozen=True, slots=True)
class ScoringWindow:
    """One request: tokens `start` to `end` of the sequence, of which those from `first` on are scored."""

    start: int
    first: int
    end: int


@dataclass(slots=True)
class Score:
    """The scored tokens of a text, in order; parallel lists. `token_bytes` has None where a server does not report
    them."""

    tokens: list[int]
    token_bytes: list[bytes | None]
    logprobs: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    top: list[dict[str, float]] = field(default_factory=list)
    logprob: float = 0.0
    """The sum, added within each window first, as lm-eval adds."""
    dropped_tokens: int = 0
    """Tokens at the beginning of the context that did not fit."""
    model: str = ""
    fingerprint: str | None = None


def windows(num_tokens: int, first: int, size: int, overlap: int) -> list[ScoringWindow]:
    """Return the requests that score tokens `first` … `num_tokens - 1`, each once, in windows of at most `size` tokens.

    The first window begins at 0 and needs `first < size`; later ones are full, and end `size - overlap` tokens after
    the one before, the last one at the end.
    """
    found: list[ScoringWindow] = []
    while first < num_tokens:
        end = min(num_tokens, first + size - overlap) if found else min(num_tokens, size)
        found.append(ScoringWindow(max(0, end - size), first, end))
        first = end
    return found


class Scorer:
    """Scores texts with one model of a source. Used on one event loop; several texts may be scored at the same time."""

    def __init__(self, source: Source, facts: TokenizerFacts, options: Options) -> None:
        """Raises SetupError for a window that is too small or larger than the context."""
        self._source = source
        self._facts = facts
        self._options = options
        self._size = _window_size(options, facts)

    async def score(self, text: InputText) -> Score:
        """Return the score of a text. Raises as the source does, and SetupError for an answer without scores."""
        tokens, token_bytes, first = await self._sequence(text)
        dropped = max(0, min(first - self._options.overlap, len(tokens) - self._size))
        tokens, token_bytes, first = tokens[dropped:], token_bytes[dropped:], first - dropped
        score = Score(tokens[first:], token_bytes[first:], dropped_tokens=dropped)
        parts = [
            await self._window(score, tokens, part)
            for part in windows(len(tokens), first, self._size, self._options.overlap)
        ]
        score.logprob = sum(parts)
        return score

    async def _sequence(self, text: InputText) -> tuple[list[int], list[bytes | None], int]:
        """Return the tokens that the model sees, their bytes, and the index of the first one to score.

        As lm-eval does: white space at the end of a context belongs to the text, the context is tokenized on its own,
        and a text without context follows the start token, or else the end token.
        """
        context = (text.context or "").rstrip()
        tokenized = await self._source.tokenize(self._options.model, (text.context or "") + text.text)
        first = len((await self._source.tokenize(self._options.model, context)).tokens) if context else 0
        tokens = tokenized.tokens
        token_bytes: list[bytes | None] = [None] * len(tokens)
        if tokenized.token_bytes is not None:
            token_bytes = list(tokenized.token_bytes)
        prefix = self._facts.prefix_token
        needs_prefix = self._facts.adds_start or not first
        if prefix is not None and needs_prefix and tokens[:1] != [prefix]:
            tokens, token_bytes, first = [prefix, *tokens], [b"", *token_bytes], first + 1
        return tokens, token_bytes, max(1, first)  # nothing precedes the very first token

    async def _window(self, score: Score, tokens: list[int], part: ScoringWindow) -> float:
        """Add the scores of one window; return their sum."""
        asked = {
            "model": self._options.model,
            "prompt": tokens[part.start : part.end],
            "max_tokens": 0,
            "temperature": 0,
            "prompt_logprobs": self._options.top,
        }
        document = (await self._source.complete(asked)).value
        records = _records(document, part.end - part.start)
        score.model = str(document.get("model") or "")
        score.fingerprint = document.get("system_fingerprint") or None
        offset = part.first - part.start
        found = [_Token.of(records[offset + index], token) for index, token in enumerate(tokens[part.first : part.end])]
        for index, each in enumerate(found, len(score.logprobs)):
            if score.token_bytes[index] is None:
                score.token_bytes[index] = each.exact_bytes
            score.logprobs.append(each.logprob)
            score.ranks.append(each.rank)
            if self._options.top:
                score.top.append(each.top)
        return sum(each.logprob for each in found)


@dataclass(frozen=True, slots=True)
class _Token:
    """What an answer reports about one token of the prompt."""

    logprob: float
    rank: int
    exact_bytes: bytes | None
    top: dict[str, float]

    @classmethod
    def of(cls, record: Any, token: int) -> _Token:
        """Read an entry of `prompt_logprobs`: an object by token id. Raises SetupError."""
        try:
            own = record[str(token)]
            text = own.get("decoded_token")
            known = text.encode() if isinstance(text, str) and "\ufffd" not in text else None
            top = {str(each["decoded_token"]): float(each["logprob"]) for each in record.values()}
            return cls(float(own["logprob"]), int(own["rank"]), known, top)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _no_scores() from None


def _records(document: dict[str, Any], expected: int) -> list[Any]:
    """Return the entries of `prompt_logprobs`, one per token. Raises SetupError."""
    choices = document.get("choices") or [{}]
    found = choices[0].get("prompt_logprobs")
    if not isinstance(found, list) or len(found) < expected:
        raise _no_scores()
    return found[-expected:]


def _no_scores() -> SetupError:
    return _cannot_score("The server did not return the log-probabilities of the prompt.")


def _cannot_score(why: str) -> SetupError:
    return SetupError(
        f"{why} Scoring needs a server that implements `prompt_logprobs`, /tokenize and /tokenizer_info, as Onward "
        "does, or a model in this process (without --base-url)."
    )


async def _facts(source: Source, model: str | None) -> TokenizerFacts:
    """Return the facts of a model's tokenizer. Raises as the source does, and SetupError for a server without them."""
    try:
        return await source.tokenizer_facts(model)
    except RemoteError as problem:
        if problem.status not in (404, 405, 501) or problem.is_unknown_model:
            raise
        raise _cannot_score(f"{source.name} does not answer /tokenizer_info ({problem.status}).") from None


def _window_size(options: Options, facts: TokenizerFacts) -> int:
    size = min(options.window or facts.context_length, facts.context_length)
    if options.window is not None and options.window > facts.context_length:
        raise SetupError(
            f"--window {options.window} is longer than the model's context of {facts.context_length} tokens."
        )
    if not 1 <= options.overlap < size:
        raise SetupError(f"--overlap {options.overlap} must be at least 1, and less than the window of {size} tokens.")
    return size


def perplexity(logprob: float, num_tokens: int) -> float:
    """Return the perplexity per token of a sum of natural log-probabilities."""
    return math.exp(-logprob / num_tokens)


def bits_per_byte(logprob: float, num_bytes: int) -> float:
    """Return the bits per byte of a sum of natural log-probabilities."""
    return -logprob / (num_bytes * math.log(2))


def record_of(text: InputText, score: Score) -> dict[str, Any]:
    """Return the result of a text as it is written: one JSON object, whose first key is `digest`."""
    num_bytes = len(text.text.encode("utf-8", "surrogatepass"))
    raw = score.token_bytes
    record: dict[str, Any] = {
        "digest": text.digest,
        "id": text.id,
        "model": score.model,
        "system_fingerprint": score.fingerprint,
        "logprob": score.logprob,
        "num_tokens": len(score.logprobs),
        "num_bytes": num_bytes,
        "bits_per_byte": bits_per_byte(score.logprob, num_bytes),
        "perplexity": perplexity(score.logprob, len(score.logprobs)) if score.logprobs else None,
        "is_greedy": all(rank == 1 for rank in score.ranks),
        "tokens": [None if each is None else render_token(each) for each in raw],
        "token_ids": score.tokens,
        "token_bytes": [None if each is None else each.hex() for each in raw],
        "token_logprobs": score.logprobs,
        "ranks": score.ranks,
    }
    if score.top:
        record["top_logprobs"] = score.top
    if score.dropped_tokens:
        record["dropped_context_tokens"] = score.dropped_tokens
    return record


@dataclass(slots=True)
class Totals:
    """Sums over texts. `logprob` is natural, added in the order of the input."""

    num_texts: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    logprob: float = 0.0
    dropped: list[str] = field(default_factory=list)
    """Ids of texts whose whole context did not fit."""

    def add(self, record: dict[str, Any]) -> None:
        """Add the record of a text."""
        self.num_texts += 1
        self.num_tokens += record["num_tokens"]
        self.num_bytes += record["num_bytes"]
        self.logprob += record["logprob"]
        if record.get("dropped_context_tokens"):
            self.dropped.append(record["id"])

    def document(self) -> dict[str, Any]:
        """Return the sums as a result document."""
        return {
            "num_texts": self.num_texts,
            "num_tokens": self.num_tokens,
            "num_bytes": self.num_bytes,
            "logprob": self.logprob,
            "bits_per_byte": bits_per_byte(self.logprob, self.num_bytes) if self.num_bytes else None,
            "perplexity": perplexity(self.logprob, self.num_tokens) if self.num_tokens else None,
        }


async def score_texts(
    source: Source, texts: Sequence[InputText], options: Options, write: Callable[[dict[str, Any]], None]
) -> None:
    """Score texts, pass each record to `write`, in order, and close the source. Raises what fails first."""
    running: deque[asyncio.Task[dict[str, Any]]] = deque()
    try:
        scorer = Scorer(source, await _facts(source, options.model), options)

        async def record(text: InputText) -> dict[str, Any]:
            return record_of(text, await scorer.score(text))

        for text in texts:
            running.append(asyncio.create_task(record(text)))
            if len(running) >= CONCURRENCY:
                write(await running.popleft())
        while running:
            write(await running.popleft())
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await source.aclose()
