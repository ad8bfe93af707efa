"""SGLang as the engine, by token ids: `POST /generate` with `input_ids` (managers/io_struct.py, docs/basic_usage).

`ignore_eos` is always set and the end tokens of the job are `stop_token_ids`, so that both sides mean the same end.
Streams report all tokens so far, or, with `--incremental-streaming-output`, the new ones: `completion_tokens` says
which. Log-probabilities of generated tokens are computed behind temperature, penalties and biases: they are refused
where one of these is in use. It does not report ranks of a prompt's tokens. Its filters act together on the whole
distribution: requests with several are refused.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from onward.sampling.outputs import Sampled
from onward.upstreams.base import UNCOMMON, Part, Segment, Traits, UpstreamError, UpstreamInfo
from onward.upstreams.connection import Connection, Fields

LACKS = UNCOMMON | {"prompt_logprobs", "raw_logprobs", "several_filters", "allowed_token_ids"}
NUM_SLOTS = 256
"""Choices that are sent at the same time: SGLang queues what its `--max-running-requests` has no room for."""
BAN = -10_000.0


class SGLang:
    """Implements `base.Upstream`."""

    traits = Traits(LACKS, has_min_tokens=True, counts_prompt=False)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def close(self) -> None:
        await self._connection.close()

    async def probe(self) -> UpstreamInfo:
        models = await self._connection.get("/v1/models")
        model = await self._connection.get("/get_model_info")
        try:
            first: Any = models["data"][0]  # type: ignore[index]
            path = str(model["model_path"])
            described = f"sglang {path} {model.get('weight_version')}"
            return UpstreamInfo(int(first["max_model_len"]), NUM_SLOTS, described, path)
        except (KeyError, IndexError, TypeError, ValueError):
            raise UpstreamError(f"{self._connection.url} does not describe its model as SGLang does.") from None

    async def encode(self, text: str) -> list[int]:
        answer = await self._connection.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise UpstreamError(f"{self._connection.url} does not tokenize as SGLang does.")
        return tokens

    async def score(self, tokens: tuple[int, ...], top: int, *, with_ranks: bool) -> list[Sampled | None]:
        body: Fields = {
            "input_ids": list(tokens),
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": top,
        }
        answer = await self._connection.post("/generate", body)
        try:
            meta: Any = answer["meta_info"]
            values, tops = meta["input_token_logprobs"], meta.get("input_top_logprobs")
            return [None, *_scored(list(tokens)[1:], values[1:], None if tops is None else tops[1:], top)]
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._malformed() from None

    async def generate(self, segment: Segment) -> AsyncGenerator[Part]:
        known, has_ended = 0, False
        async with aclosing(self._connection.stream("/generate", request_body(segment))) as events:
            async for event in events:
                try:
                    meta: Any = event["meta_info"]
                    part, known = self._part(event, meta, known, segment)
                    finish = meta.get("finish_reason")
                    is_abort = finish is not None and finish.get("type") == "abort"
                except (KeyError, IndexError, TypeError, ValueError, AttributeError):
                    raise self._malformed() from None
                if part.tokens:
                    yield part
                if is_abort:
                    raise UpstreamError(f"{self._connection.url} gave the request up: {finish.get('message')}")
                has_ended = has_ended or finish is not None
        if not has_ended:
            raise UpstreamError(f"{self._connection.url} closed its answer half-way.", is_lost=True)

    def _part(self, event: Fields, meta: Any, known: int, segment: Segment) -> tuple[Part, int]:
        """Return the new tokens of an event, and how many there are in all."""
        ids: Any = event["output_ids"]
        total = int(meta["completion_tokens"])
        new = [int(token) for token in (ids[known:] if len(ids) == total else ids)]
        if segment.sampling.logprobs is None:
            tokens = [Sampled(token, math.nan, ()) for token in new]
        else:
            values, tops = meta["output_token_logprobs"], meta.get("output_top_logprobs")
            start = len(values) - len(new)
            tokens = _scored(new, values[start:], tops[start:] if tops else None, segment.sampling.logprobs)
        cached = meta.get("cached_tokens")
        return Part(tokens, cached if type(cached) is int else None), known + len(new)

    def _malformed(self) -> UpstreamError:
        return UpstreamError(f"{self._connection.url} sent tokens in another form than SGLang does.")


def request_body(segment: Segment) -> Fields:
    """Return the request for a segment."""
    params = segment.sampling
    biases = {str(token): value for token, value in params.logit_bias} | {str(token): BAN for token in segment.banned}
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
        "ignore_eos": True,
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


def _scored(ids: list[int], values: Any, tops: Any, num_top: int) -> list[Sampled]:
    """Return tokens with their log-probabilities, each [log-probability, id, text]; they must be those of `ids`."""
    found = []
    for index, (token, value) in enumerate(zip(ids, values, strict=True)):
        if value[1] != token:
            raise ValueError("the log-probabilities are those of other tokens")
        entries = (tops[index] or []) if tops else []
        top = [(int(entry[1]), float(entry[0])) for entry in entries[:num_top]]
        found.append(Sampled(token, float(value[0]), tuple(top)))
    return found
