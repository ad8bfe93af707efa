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
from typing import Any

from onward.sampling.outputs import Sampled
from onward.upstreams.base import UNCOMMON, Part, Segment, Traits, UpstreamError, UpstreamInfo
from onward.upstreams.connection import Connection, Fields

NUM_SLOTS = 256
"""Choices that are sent at the same time: vLLM queues what its `--max-num-seqs` has no room for."""
BAN = -100.0
"""The lowest bias that it accepts."""
TOKEN_PREFIX = "token_id:"


class VLLM:
    """Implements `base.Upstream`. `model` is known after `probe`."""

    traits = Traits(UNCOMMON, has_min_tokens=True, counts_prompt=False)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._model = ""

    async def close(self) -> None:
        await self._connection.close()

    async def probe(self) -> UpstreamInfo:
        models = await self._connection.get("/v1/models")
        version = await self._connection.get("/version")
        try:
            first: Any = models["data"][0]  # type: ignore[index]
            self._model = str(first["id"])
            described = f"vllm {version.get('version')} {first['id']} {first.get('root')}"
            return UpstreamInfo(int(first["max_model_len"]), NUM_SLOTS, described, str(first.get("root") or ""))
        except (KeyError, IndexError, TypeError, ValueError):
            raise UpstreamError(
                f"{self._connection.url} does not describe its model as vLLM does at /v1/models."
            ) from None

    async def encode(self, text: str) -> list[int]:
        body: Fields = {"model": self._model, "prompt": text, "add_special_tokens": False}
        tokens = (await self._connection.post("/tokenize", body)).get("tokens")
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise UpstreamError(f"{self._connection.url} does not tokenize as vLLM does.")
        return tokens

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
        answer = await self._connection.post("/v1/completions", body)
        try:
            choice: Any = answer["choices"][0]  # type: ignore[index]
            found = _scored(list(tokens), choice["logprobs"], top, first_is_none=True)
            return _ranked(found, choice["prompt_logprobs"]) if with_ranks else found
        except (KeyError, IndexError, TypeError, ValueError):
            raise self._malformed() from None

    async def generate(self, segment: Segment) -> AsyncGenerator[Part]:
        has_ended = False
        body = request_body(segment, self._model)
        async with aclosing(self._connection.stream("/v1/completions", body)) as events:
            async for event in events:
                try:
                    choices: Any = event["choices"]
                    if not choices:
                        continue
                    part = self._part(choices[0], segment)
                    has_ended = has_ended or choices[0].get("finish_reason") is not None
                except (KeyError, IndexError, TypeError, ValueError):
                    raise self._malformed() from None
                if part.tokens:
                    yield part
        if not has_ended:
            raise UpstreamError(f"{self._connection.url} closed its answer half-way.", is_lost=True)

    def _part(self, choice: Any, segment: Segment) -> Part:
        if choice.get("token_ids") is None:
            raise UpstreamError(f"{self._connection.url} does not return token ids: vLLM 0.10.2 or newer is needed.")
        ids = [int(token) for token in choice["token_ids"]]
        return Part(_tokens(ids, choice.get("logprobs"), segment.sampling.logprobs))

    def _malformed(self) -> UpstreamError:
        return UpstreamError(f"{self._connection.url} sent tokens in another form than vLLM does.")


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


def _tokens(ids: list[int], logprobs: Any, num_top: int | None) -> list[Sampled]:
    """Return the tokens of a chunk. Raises KeyError, TypeError or ValueError for log-probabilities of others."""
    if num_top is None:
        return [Sampled(token, math.nan, ()) for token in ids]
    return [one for one in _scored(ids, logprobs, num_top) if one is not None]


def _ranked(scored: list[Sampled | None], entries: Any) -> list[Sampled | None]:
    """Return prompt tokens with their ranks: that in `top`, or for others vLLM's own."""
    found: list[Sampled | None] = []
    for one, entry in zip(scored, entries, strict=True):
        if one is None:
            found.append(None)
            continue
        places = {token: place for place, (token, _) in enumerate(one.top, 1)}
        found.append(one._replace(rank=places.get(one.token) or int(entry[str(one.token)]["rank"])))
    return found


def _scored(ids: list[int], logprobs: Any, num_top: int, *, first_is_none: bool = False) -> list[Sampled | None]:
    """Return tokens with their log-probabilities, which must be those of `ids`; None for a first one that has none."""
    names, values, tops = logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]
    found: list[Sampled | None] = []
    for index, (token, name, value) in enumerate(zip(ids, names, values, strict=True)):
        if name != f"{TOKEN_PREFIX}{token}":
            raise ValueError("the log-probabilities are those of other tokens")
        if value is None and first_is_none and index == 0:
            found.append(None)
            continue
        entries = sorted(((int(key.removeprefix(TOKEN_PREFIX)), float(lp)) for key, lp in (tops[index] or {}).items()),
                         key=lambda entry: (-entry[1], entry[0]))  # fmt: skip
        found.append(Sampled(token, float(value), tuple(entries[:num_top])))
    return found
