"""vLLM as the engine, by token ids: its own `/v1/completions` (entrypoints/openai/completion, 0.10.2 on).

Prompts are arrays of token ids, and `return_token_ids` returns those that were generated. `ignore_eos` is always set
and the end tokens of the job are `stop_token_ids`, so that both sides mean the same end. Prompts are scored by `echo`
with `max_tokens` 0. Presence and frequency penalties count generated tokens only, as here; its repetition penalty
counts the prompt's too. Log-probabilities are raw unless the server was started with another `--logprobs-mode`.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from onward.engines.upstreams.answers import (
    Malformed,
    UpstreamAnswer,
    answer_bytes,
    context_length,
    first_model,
    logprob,
    tokenized,
)
from onward.engines.upstreams.base import UNCOMMON, AnswerPart, Segment, Traits, UpstreamError, UpstreamInfo
from onward.engines.upstreams.connection import Connection, Fields
from onward.sampling.outputs import Sampled

NUM_SLOTS = 256
"""Choices that are sent at the same time: vLLM queues what its `--max-num-seqs` has no room for."""
BAN = -100.0
"""The lowest bias that it accepts."""
TOKEN_PREFIX = "token_id:"


class _Model(msgspec.Struct):
    id: str
    max_model_len: int
    root: str | None = None


class _Models(UpstreamAnswer, kw_only=True):
    data: list[_Model]


class _Version(UpstreamAnswer, kw_only=True):
    version: str | None = None


class _Tokenized(UpstreamAnswer, kw_only=True):
    tokens: list[int]


class _Logprobs(msgspec.Struct):
    """With tokens as `token_id:ID`."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class _Ranked(msgspec.Struct):
    rank: int


class _Choice(msgspec.Struct):
    index: int = 0
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: list[dict[str, _Ranked] | None] | None = None
    finish_reason: str | None = None


class _Completion(UpstreamAnswer, kw_only=True):
    """An answer in one piece, or a chunk of a stream: without a choice if it only has the usage."""

    choices: list[_Choice]

    @property
    def is_progress(self) -> bool:
        return any(choice.token_ids or choice.finish_reason for choice in self.choices)

    def choice(self) -> _Choice:
        """Return the only choice. Raises Malformed."""
        if len(self.choices) != 1:
            raise Malformed(f"{len(self.choices)} choices")
        if self.choices[0].index:
            raise Malformed(f"choice {self.choices[0].index}")
        return self.choices[0]


class VLLM:
    """Implements `base.Upstream`. `model` is known after `probe`."""

    traits = Traits(UNCOMMON, has_min_tokens=True, counts_prompt=False)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._model = ""

    async def close(self) -> None:
        await self._connection.close()

    async def probe(self) -> UpstreamInfo:
        await self._connection.check("/health")  # it answers the others without its engine too
        models = await self._connection.get("/v1/models", _Models)
        version = await self._connection.get("/version", _Version)
        first = first_model(models.data)
        self._model = first.id
        described = f"vllm {version.version} {first.id} {first.root}"
        return UpstreamInfo(context_length(first.max_model_len), NUM_SLOTS, described, first.root or "")

    async def encode(self, text: str) -> list[int]:
        body: Fields = {"model": self._model, "prompt": text, "add_special_tokens": False}
        answer = await self._connection.post("/tokenize", body, _Tokenized)
        return tokenized(answer.tokens, text)

    async def score(self, tokens: tuple[int, ...], top: int, *, with_ranks: bool) -> list[Sampled | None]:
        body: Fields = {
            "model": self._model,
            "prompt": list(tokens),
            "echo": True,
            "max_tokens": 0,
            "logprobs": top,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
        }
        if with_ranks:
            body["prompt_logprobs"] = top
        max_bytes = answer_bytes(len(tokens), 2 * (top + 1) if with_ranks else top, len(tokens))
        answer = await self._connection.post("/v1/completions", body, _Completion, max_bytes)
        choice = answer.choice()
        found = _scored(list(tokens), choice.logprobs, top, first_is_none=True)
        return _ranked(found, choice.prompt_logprobs) if with_ranks else found

    async def generate(self, segment: Segment) -> AsyncGenerator[AnswerPart]:
        has_ended = False
        body = request_body(segment, self._model)
        max_bytes = answer_bytes(segment.max_tokens, segment.sampling.logprobs, len(segment.tokens))
        stream = self._connection.stream(
            "/v1/completions", body, _Completion, max_bytes, lambda chunk: chunk.is_progress
        )
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                if not chunk.choices:
                    continue
                choice = chunk.choice()
                part = self._part(choice, segment)
                has_ended = has_ended or choice.finish_reason is not None
                if part.tokens:
                    yield part
        if not has_ended:
            raise UpstreamError(f"{self._connection.url} closed its answer half-way.", is_lost=True)

    def _part(self, choice: _Choice, segment: Segment) -> AnswerPart:
        """Return the tokens of a chunk. Raises Malformed for log-probabilities of others."""
        ids, num_top = choice.token_ids, segment.sampling.logprobs
        if ids is None:
            raise UpstreamError(f"{self._connection.url} does not return token ids: vLLM 0.10.2 or newer is needed.")
        if num_top is None or not ids:
            return AnswerPart([Sampled(token, math.nan, ()) for token in ids])
        return AnswerPart([one for one in _scored(ids, choice.logprobs, num_top) if one is not None])


def request_body(segment: Segment, model: str) -> Fields:
    """Return the request for a segment."""
    params = segment.sampling
    biases = {str(token): value for token, value in params.logit_bias} | {str(token): BAN for token in segment.banned}
    body: Fields = {
        "model": model,
        "prompt": list(segment.tokens),
        "max_tokens": segment.max_tokens,
        "min_tokens": segment.min_tokens,
        "stream": True,
        "temperature": 0.0 if params.is_greedy else params.temperature,
        "top_p": params.top_p if params.top_p > 0 else 1.0,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": 1.0,
        "seed": segment.seed,
        "ignore_eos": True,
        "stop_token_ids": sorted(segment.end_tokens),
        "skip_special_tokens": False,
        "add_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if biases:
        body["logit_bias"] = biases
    if params.allowed_tokens:
        body["allowed_token_ids"] = list(params.allowed_tokens)
    if params.logprobs is not None:
        body["logprobs"] = params.logprobs
    return body


def _ranked(scored: list[Sampled | None], entries: list[dict[str, _Ranked] | None] | None) -> list[Sampled | None]:
    """Return prompt tokens with their ranks: that in `top`, or for others vLLM's own. Raises Malformed."""
    if entries is None or len(entries) != len(scored):
        raise Malformed("the ranks of another number of tokens")
    found: list[Sampled | None] = []
    for one, entry in zip(scored, entries, strict=True):
        if one is None:
            found.append(None)
            continue
        places = {token: place for place, (token, _) in enumerate(one.top, 1)}
        own = (entry or {}).get(str(one.token))
        if own is None:
            raise Malformed("a token without its rank")
        found.append(one._replace(rank=places.get(one.token) or own.rank))
    return found


def _scored(
    ids: list[int], logprobs: _Logprobs | None, num_top: int, *, first_is_none: bool = False
) -> list[Sampled | None]:
    """Return tokens with their log-probabilities; None for a first one that has none. Raises Malformed for those of
    others."""
    if logprobs is None or logprobs.tokens != [f"{TOKEN_PREFIX}{token}" for token in ids]:
        raise Malformed("the log-probabilities of other tokens")
    values, tops = logprobs.token_logprobs, logprobs.top_logprobs
    if not len(values) == len(tops) == len(ids):
        raise Malformed("another number of log-probabilities than of tokens")
    found: list[Sampled | None] = []
    for index, (token, value, top) in enumerate(zip(ids, values, tops, strict=True)):
        if value is None and first_is_none and index == 0:
            found.append(None)
            continue
        entries = sorted(
            ((_id(name), logprob(other)) for name, other in (top or {}).items()),
            key=lambda entry: (-entry[1], entry[0]),
        )
        found.append(Sampled(token, logprob(value), tuple(entries[:num_top])))
    return found


def _id(name: str) -> int:
    """Return the id in `token_id:ID`. Raises Malformed."""
    digits = name.removeprefix(TOKEN_PREFIX)
    if not (name.startswith(TOKEN_PREFIX) and digits.isascii() and digits.isdecimal() and len(digits) < 10):
        raise Malformed("an alternative that is not a token id")
    return int(digits)
