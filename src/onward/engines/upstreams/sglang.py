"""SGLang as the engine, by token ids: `POST /generate` with `input_ids` (managers/io_struct.py, docs/basic_usage).

The end tokens of the job are `stop_token_ids`. With `ignore_eos`, which is set where the model's own are no ends, it
continues after all of them: Onward finds the end, and leaves. `min_new_tokens` bans the model's own in any case.
Streams report all tokens so far, or, with `--incremental-streaming-output`, the new ones: `completion_tokens` says
which. Log-probabilities of generated tokens are computed after temperature, penalties and biases: they are refused
where one of these is in use. It does not report ranks of a prompt's tokens. Its filters act together on the whole
distribution: requests with several are refused. It uses seeds in its deterministic mode only. Where its schedule
overlaps (the default), its penalties miss the last token, and count the prompt's last one.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import msgspec
import numpy as np

from onward.engines.upstreams.answers import (
    LOST_CODES,
    REQUEST_CODES,
    Malformed,
    TokenIds,
    UpstreamAnswer,
    answer_bytes,
    cached_tokens,
    context_length,
    first_model,
    logprob,
    printable,
    segment_bytes,
    tokenized,
)
from onward.engines.upstreams.base import AnswerPart, Segment, Traits, UpstreamError, UpstreamInfo, compute_token
from onward.engines.upstreams.connection import Connected, Fields
from onward.sampling.filters import OPTIONAL
from onward.sampling.outputs import Sampled

LACKS = frozenset(
    (
        "prompt_logprobs",
        "raw_logprobs",
        "several_filters",
        "repetition_penalty",
        *OPTIONAL,
        "mirostat",
        "cache_salt",
        "samplers",
        "seed",
    )
)
NUM_SLOTS = 256
"""Choices that are sent at the same time: SGLang queues what its `--max-running-requests` has no room for."""
BAN, ALLOWING_BIAS = -10_000.0, 1_000.0
"""Biases beyond all logits. A float32 logit near the second is rounded to 6e-5."""
SCHEDULER_SECONDS = 25.0
"""How long an answer may take that waits for its scheduler, which computes a step first: a part of a long prompt, say.
Its `/health` gives up after 20."""
RESERVED_TOKENS = 7
"""Of its context: the longest prompt that it takes has so many tokens less, and what it generates ends two before."""


_Entry = tuple[float | None, int, str | None]
"""A log-probability, a token's id and its text."""


class _Model(msgspec.Struct):
    max_model_len: int | None = None
    """None of an adapter."""


class _Models(UpstreamAnswer, kw_only=True):
    data: list[_Model]


class _ModelInfo(UpstreamAnswer, kw_only=True):
    model_path: str
    weight_version: str | int | None = None


class _ServerInfo(UpstreamAnswer, kw_only=True):
    enable_deterministic_inference: bool = False
    disable_overlap_schedule: bool = False


class _Finish(msgspec.Struct):
    type: str
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct):
    completion_tokens: int = 0
    finish_reason: _Finish | None = None
    cached_tokens: int | None = None
    output_token_logprobs: list[_Entry] | None = None
    output_top_logprobs: list[list[_Entry] | None] | None = None
    input_token_logprobs: list[_Entry] | None = None
    input_top_logprobs: list[list[_Entry] | None] | None = None


class _Generated(UpstreamAnswer, kw_only=True):
    """An answer in one piece, or an event of a stream."""

    index: int = 0
    output_ids: list[int]
    meta_info: _Meta


class SGLang(Connected):
    """Implements `base.Upstream`."""

    traits = Traits(LACKS, has_min_tokens=True, counts_prompt=False, counts_late=True)
    """Those of its usual mode; when `probe` has found out, those of its own."""

    async def probe(self) -> UpstreamInfo:
        models = await self._connection.get("/v1/models", _Models)
        model = await self._connection.get("/get_model_info", _ModelInfo)
        await self._connection.check("/health", SCHEDULER_SECONDS)
        server = await self._connection.get("/get_server_info", _ServerInfo, SCHEDULER_SECONDS)
        lacks = LACKS - {"seed"} if server.enable_deterministic_inference else LACKS
        self.traits = replace(self.traits, lacks=lacks, counts_late=not server.disable_overlap_schedule)
        described = f"sglang {model.model_path} {model.weight_version}"
        length = context_length(first_model(models.data).max_model_len)
        return UpstreamInfo(context_length(length - RESERVED_TOKENS), NUM_SLOTS, described, model.model_path)

    async def check_engine(self) -> None:
        await compute_token(self)

    async def encode(self, text: str) -> list[int]:
        answer = await self._connection.post("/tokenize", {"prompt": text, "add_special_tokens": False}, TokenIds)
        return tokenized(answer.tokens, text)

    async def score(
        self, tokens: tuple[int, ...], top: int, *, with_ranks: bool, salt: str = ""
    ) -> list[Sampled | None]:
        body: Fields = {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": top,
        }
        max_bytes = answer_bytes(len(tokens), top, len(tokens))
        meta = (await self._connection.post("/generate", body, _Generated, max_bytes)).meta_info
        values, tops = meta.input_token_logprobs or [], meta.input_top_logprobs
        return [None, *_scored(list(tokens)[1:], values[1:], None if tops is None else tops[1:], top)]

    async def generate(self, segment: Segment) -> AsyncGenerator[AnswerPart]:
        known, has_ended = 0, False
        # Each event may repeat all tokens before it.
        max_bytes = segment_bytes(segment)

        def is_progress(event: _Generated) -> bool:
            return event.meta_info.completion_tokens > known  # an end is none: any number of them may follow

        stream = self._connection.stream("/generate", request_body(segment), _Generated, max_bytes, is_progress)
        async with aclosing(stream) as events:
            async for event in events:
                finish = event.meta_info.finish_reason
                if finish is not None and finish.type == "abort":
                    raise self._given_up(finish)
                part = self._part(event, known, segment)
                known += len(part.tokens)
                if part.tokens:
                    yield part
                has_ended = has_ended or finish is not None
        if not has_ended:
            raise self._ended_early()

    def _part(self, event: _Generated, known: int, segment: Segment) -> AnswerPart:
        """Return the new tokens of an event, after `known` others. Raises Malformed."""
        ids, meta, total = event.output_ids, event.meta_info, event.meta_info.completion_tokens
        new = ids[known:] if len(ids) == total else ids
        if event.index:
            raise Malformed(f"choice {event.index}")
        if known + len(new) != total:
            raise Malformed(f"{len(ids)} tokens, {total} in all after {known}")
        if segment.sampling.logprobs is None:
            tokens = [Sampled(token, math.nan, ()) for token in new]
        else:
            values, tops = meta.output_token_logprobs or [], meta.output_top_logprobs
            start = len(values) - len(new)
            tokens = _scored(new, values[start:], tops[start:] if tops else None, segment.sampling.logprobs)
        return AnswerPart(tokens, cached_tokens(meta.cached_tokens, len(segment.tokens)))

    def _given_up(self, finish: _Finish) -> UpstreamError:
        return UpstreamError(
            f"{self._connection.url} gave the request up: {printable(finish.message or 'no reason given')}",
            is_lost=finish.status_code in LOST_CODES,
            is_request=finish.status_code in REQUEST_CODES,
        )


def request_body(segment: Segment) -> Fields:
    """Return the request for a segment."""
    params = segment.sampling
    biases = _biases(segment)
    sampling: Fields = {
        "max_new_tokens": segment.max_tokens,
        "min_new_tokens": segment.min_tokens,
        "temperature": 0.0 if params.is_greedy else params.temperature,
        "top_p": params.top_p if params.top_p > 0 else 1.0,
        "top_k": params.top_k or -1,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": 1.0,
        "sampling_seed": segment.seed,
        "ignore_eos": not segment.has_own_ends,
        "stop_token_ids": sorted(segment.end_tokens),
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if biases:
        sampling["logit_bias"] = biases
    body: Fields = {"input_ids": list(segment.tokens), "sampling_params": sampling, "stream": True}
    if params.logprobs is not None:
        body |= {"return_logprob": True, "top_logprobs_num": params.logprobs}
    return body


def _biases(segment: Segment) -> dict[str, float]:
    """Return what is added to logits, by token id. Of the tokens that are allowed and those that are not, the fewer are
    named."""
    biases = segment.biases
    banned = set(segment.banned)
    if segment.allowed is not None:
        allowed, others = np.flatnonzero(segment.allowed).tolist(), np.flatnonzero(~segment.allowed).tolist()
        if len(others) < len(allowed):
            banned.update(others)
        else:
            biases |= {token: biases.get(token, 0.0) + ALLOWING_BIAS for token in allowed}
    biases |= dict.fromkeys(banned, BAN)
    return {str(token): value for token, value in biases.items()}


def _scored(
    ids: list[int], values: list[_Entry], tops: list[list[_Entry] | None] | None, num_top: int
) -> list[Sampled]:
    """Return tokens with their log-probabilities. Raises Malformed for those of others."""
    if [token for _, token, _ in values] != ids:
        raise Malformed("the log-probabilities of other tokens")
    if tops is not None and len(tops) != len(ids):
        raise Malformed("another number of alternatives than of tokens")
    found = []
    for index, (value, token, _) in enumerate(values):
        entries = (tops[index] or []) if tops else []
        top = [(other, logprob(number, null_is_zero=True)) for number, other, _ in entries[:num_top]]
        found.append(Sampled(token, logprob(value), tuple(top)))
    return found
