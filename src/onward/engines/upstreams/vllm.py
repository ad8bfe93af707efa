"""vLLM as the engine, by token ids: its own `/v1/completions` (entrypoints/openai/completion, 0.10.2 on).

Prompts are arrays of token ids, and `return_token_ids` returns those that were generated. `ignore_eos` is always set
and the end tokens of the job are `stop_token_ids`, so that both sides mean the same end; `min_tokens` bans the model's
own ends even so. Prompts are scored by `echo` with `max_tokens` 0, but for the last token of one that fills the
context: vLLM wants room for one more. Presence and frequency penalties count generated tokens only, as here; its
repetition penalty counts the prompt's too. Its filters act in the default order. Log-probabilities are raw unless the
server was started with another `--logprobs-mode`.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from operator import attrgetter

import msgspec
import numpy as np
from numpy.typing import NDArray

from onward.constraints.lark import ending_with
from onward.engines.upstreams.answers import (
    MAX_CONTEXT_LENGTH,
    MAX_VOCABULARY,
    Malformed,
    TokenIds,
    UpstreamAnswer,
    answer_bytes,
    context_length,
    first_model,
    segment_bytes,
    tokenized,
)
from onward.engines.upstreams.base import AnswerPart, Segment, Traits, UpstreamError, UpstreamInfo, compute_token
from onward.engines.upstreams.connection import Connected, Connection, Fields
from onward.engines.upstreams.vllm_answers import VLLMChoice, VLLMCompletion, distribution_of, ranked, scored
from onward.sampling.filters import OPTIONAL
from onward.sampling.outputs import Sampled
from onward.sampling.params import SamplingParams

NUM_SLOTS = 256
"""Choices that are sent at the same time: vLLM queues what its `--max-num-seqs` has no room for."""
MAX_BIAS = 100.0
"""It clamps biases to this and to its negative."""
LACKS = frozenset({"repetition_penalty", *OPTIONAL, "mirostat", "order_of_samplers"})
WITH_DISTRIBUTION = frozenset({"repetition_penalty"})
"""What it lacks where it reports the probability of every token: the penalty needs logits."""
OLDEST = (0, 10, 2)
ALL_TOKENS = -1
RANKED = 20
"""Alternatives that every server reports: the default of `--max-logprobs`."""


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    """None of an adapter."""
    root: str | None = None


class _Models(UpstreamAnswer, kw_only=True):
    data: list[_Model]


class _Version(UpstreamAnswer, kw_only=True):
    version: str | None = None


class VLLM(Connected):
    """Implements `base.Upstream`. `model` is known after `probe`."""

    traits = Traits(LACKS, has_min_tokens=True, counts_prompt=False, counts_cache_last=True)
    """With `has_distribution`, and without what that adds, when `probe` has found out."""

    def __init__(self, connection: Connection, *, has_grammars: bool = False) -> None:
        """`has_grammars`: whether llguidance keeps to grammars there, by its settings."""
        super().__init__(connection)
        self._has_grammars = has_grammars
        self._model = ""
        self._context_length = MAX_CONTEXT_LENGTH
        self._reports_all: bool | None = None
        """Whether it reports the log-probability of every token (`--max-logprobs -1`); None: it was not asked yet."""

    async def probe(self) -> UpstreamInfo:
        await self._connection.check("/health")  # it answers the others without its engine too
        models = await self._connection.get("/v1/models", _Models)
        version = await self._connection.get("/version", _Version)
        self._require_version(version.version or "")
        first = first_model(models.data)
        self._model = first.id
        described = f"vllm {version.version} {first.id} {first.root}"
        self._context_length = context_length(first.max_model_len)
        if self._reports_all is None:  # only once: a completion waits where the server is busy, which is not being away
            self._reports_all = await self._asked_for_all()
            if self._reports_all:
                self.traits = replace(self.traits, lacks=WITH_DISTRIBUTION, has_distribution=True)
            if self._has_grammars:
                self.traits = replace(self.traits, has_grammars=await self._keeps_grammars())
        return UpstreamInfo(self._context_length, NUM_SLOTS, described, first.root or "")

    def _require_version(self, version: str) -> None:
        """Raise UpstreamError for a release that is too old; what is not a number of a release may be new."""
        found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
        if found is not None and tuple(map(int, found.groups())) < OLDEST:
            raise UpstreamError(
                f"{self._connection.url} is vLLM {found[0]}, which returns no token ids: 0.10.2 or newer is needed."
            )

    async def _asked_for_all(self) -> bool:
        """Ask for the log-probability of every token; return whether it was answered. Raises UpstreamError."""
        body: Fields = {"model": self._model, "prompt": [0], "max_tokens": 1, "logprobs": ALL_TOKENS}
        try:
            answer = await self._connection.post(
                "/v1/completions", body, VLLMCompletion, answer_bytes(1, MAX_VOCABULARY)
            )
        except UpstreamError as error:
            if error.is_request:
                return False
            raise
        return bool(answer.choices)

    async def _keeps_grammars(self) -> bool:
        """Ask for a text that a grammar ends at once; return whether it did. Raises UpstreamError."""
        grammar = ending_with('start: ""', [1])
        segment = Segment((0,), 0, 1, SamplingParams(temperature=0.0), 0, whole=True, grammar=grammar)
        try:
            part = await self._whole(request_body(segment, self._model), segment)
        except UpstreamError as error:
            if error.is_request:
                return False
            raise
        return [sampled.token for sampled in part.tokens] == [1]

    async def check_engine(self) -> None:
        await compute_token(self)

    async def encode(self, text: str) -> list[int]:
        body: Fields = {"model": self._model, "prompt": text, "add_special_tokens": False}
        answer = await self._connection.post("/tokenize", body, TokenIds)
        return tokenized(answer.tokens, text)

    async def score(
        self, tokens: tuple[int, ...], top: int, *, with_ranks: bool, salt: str = ""
    ) -> list[Sampled | None]:
        if len(tokens) < self._context_length:
            return await self._scores(tokens, top, with_ranks, salt)
        last = await self._score_of_last(tokens, top, with_ranks, salt)
        return [*(await self._scores(tokens[:-1], top, with_ranks, salt)), last]

    async def _score_of_last(self, tokens: tuple[int, ...], top: int, with_ranks: bool, salt: str) -> Sampled:
        """Score the last token as the only one that may be generated after those before it. Its rank is known only as
        far as the list of the most likely tokens shows it. Raises UpstreamError."""
        last, listed = tokens[-1], RANKED if with_ranks else top
        params = SamplingParams(temperature=0.0, allowed_tokens=(last,), logprobs=listed)
        segment = Segment(tokens[:-1], 0, 1, params, 0, whole=True, salt=salt)
        body = request_body(segment, self._model) | {"allowed_token_ids": [last]}
        [scored] = (await self._whole(body, segment)).tokens
        if with_ranks:
            rank = next((place for place, (token, _) in enumerate(scored.top, 1) if token == last), None)
            if rank is None:
                raise UpstreamError(
                    f"{self._connection.url} does not report the rank of the last token of a prompt that fills its "
                    f"context, where it is not among the {listed} most likely ones.",
                    is_request=True,
                )
            scored = scored._replace(rank=rank)
        return scored._replace(top=scored.top[:top])

    async def _scores(self, tokens: tuple[int, ...], top: int, with_ranks: bool, salt: str) -> list[Sampled | None]:
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
        if salt:
            body["cache_salt"] = salt
        max_bytes = answer_bytes(len(tokens), 2 * (top + 1) if with_ranks else top, len(tokens))
        answer = await self._connection.post("/v1/completions", body, VLLMCompletion, max_bytes)
        choice = answer.choice()
        found = scored(list(tokens), choice.logprobs, top, first_is_none=True)
        return ranked(found, choice.prompt_logprobs) if with_ranks else found

    async def _whole(self, body: Fields, segment: Segment) -> AnswerPart:
        """Return an answer in one piece. Raises UpstreamError."""
        answer = await self._connection.post("/v1/completions", body, VLLMCompletion, segment_bytes(segment))
        tokens = self._part(answer.choice(), segment).tokens
        return AnswerPart(tokens, answer.num_cached(len(segment.tokens)))

    async def generate(self, segment: Segment) -> AsyncGenerator[AnswerPart]:
        has_ended = False
        body = request_body(segment, self._model)
        if segment.whole:
            yield await self._whole(body, segment)
            return
        max_bytes = segment_bytes(segment)
        stream = self._connection.stream("/v1/completions", body, VLLMCompletion, max_bytes, attrgetter("is_progress"))
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                if chunk.usage is not None and (num_cached := chunk.num_cached(len(segment.tokens))) is not None:
                    yield AnswerPart(num_cached=num_cached)
                if not chunk.choices:
                    continue
                choice = chunk.choice()
                part = self._part(choice, segment)
                has_ended = has_ended or choice.finish_reason is not None
                if part.tokens:
                    yield part
        if not has_ended:
            raise self._ended_early()

    async def distribution(self, segment: Segment, vocab_size: int) -> tuple[NDArray[np.float32], int | None]:
        # Whatever it samples is not used.
        whole = replace(segment, max_tokens=1, whole=True, penalties=(), banned=frozenset(), allowed=None)
        plain = SamplingParams(temperature=0.0, logprobs=vocab_size)
        body = request_body(replace(whole, sampling=plain, min_tokens=0), self._model)
        max_bytes = answer_bytes(1, vocab_size, len(segment.tokens))
        answer = await self._connection.post("/v1/completions", body, VLLMCompletion, max_bytes)
        reported = answer.choice().logprobs
        if reported is None or len(reported.top_logprobs) != 1:
            raise Malformed("no log-probabilities of all tokens")
        found = await asyncio.to_thread(distribution_of, reported.top_logprobs[0] or {}, vocab_size)
        return found, answer.num_cached(len(segment.tokens))

    def _part(self, choice: VLLMChoice, segment: Segment) -> AnswerPart:
        """Return the tokens of a chunk. Raises Malformed for log-probabilities of others."""
        ids, num_top = choice.token_ids, segment.sampling.logprobs
        if ids is None:
            raise UpstreamError(f"{self._connection.url} does not return token ids: vLLM 0.10.2 or newer is needed.")
        if num_top is None or not ids:
            return AnswerPart([Sampled(token, math.nan, ()) for token in ids])
        return AnswerPart([one for one in scored(ids, choice.logprobs, num_top) if one is not None])


def request_body(segment: Segment, model: str) -> Fields:
    """Return the request for a segment."""
    params = segment.sampling
    body: Fields = {
        "model": model,
        "prompt": list(segment.tokens),
        "max_tokens": segment.max_tokens,
        "min_tokens": segment.min_tokens,
        "stream": not segment.whole,
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
    if not segment.whole:
        body["stream_options"] = {"include_usage": True}
    if segment.allowed is not None and not _names_banned(segment.allowed):
        body["allowed_token_ids"] = np.flatnonzero(segment.allowed).tolist()
    if biases := _biases(segment):
        body["logit_bias"] = biases
    if params.logprobs is not None:
        body["logprobs"] = params.logprobs
    if segment.salt:
        body["cache_salt"] = segment.salt
    if segment.grammar:
        body["structured_outputs"] = {"grammar": segment.grammar}
    return body


def _names_banned(allowed: NDArray[np.bool_]) -> bool:
    """Whether a request names the tokens that are not allowed, since they are the fewer."""
    return 2 * int(np.count_nonzero(allowed)) > allowed.size


def _biases(segment: Segment) -> dict[str, float]:
    """Return what is added to logits, by token id."""
    biases = segment.biases
    others = set(segment.banned)
    if segment.allowed is not None and _names_banned(segment.allowed):
        others.update(np.flatnonzero(~segment.allowed).tolist())
    biases |= dict.fromkeys(others, -MAX_BIAS)
    return {str(token): max(-MAX_BIAS, min(value, MAX_BIAS)) for token, value in biases.items()}
