"""llama.cpp's llama-server as the engine, by token ids: `POST /completion` (tools/server/README.md, build b7000 on).

Streams do not report the ids of tokens that leave a character incomplete: only the token that completes it arrives,
with `tokens_predicted` one or more ahead. Such a stream is broken off there (`AnswerPart.is_broken`), and the engine
asks for the rest in one piece, whose `tokens` are complete. The log-probability of such a token is missing there too:
it is read from the list of the most likely ones at its position. Log-probabilities with `n_probs` are of the raw
distribution.

It closes the connection after each stream without announcing it, and a request that is sent there just then gets no
answer: each stream has a connection of its own.

Penalties count the last `repeat_last_n` tokens, also of the prompt: they are used for one token at a time, with as many
as were generated.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import numpy as np

from onward.engines.upstreams.answers import (
    MAX_SLOTS,
    MAX_VOCABULARY,
    Malformed,
    TokenIds,
    UpstreamAnswer,
    answer_bytes,
    cached_tokens,
    context_length,
    first_model,
    logprob,
    segment_bytes,
    tokenized,
)
from onward.engines.upstreams.base import AnswerPart, Segment, Traits, UpstreamError, UpstreamInfo, compute_token
from onward.engines.upstreams.connection import Connected, Fields
from onward.sampling.filters import FILTERS, OPTIONAL
from onward.sampling.outputs import Sampled
from onward.sampling.params import SamplingParams

SAMPLER_NAMES = {
    "temperature": "temperature",
    "top_n_sigma": "top_n_sigma",
    "min_p": "min_p",
    "top_k": "top_k",
    "top_p": "top_p",
    "typical_p": "typ_p",
    "xtc": "xtc",
}
"""The filters that it has, by their names there."""
LACKS = frozenset(
    (
        "prompt_logprobs",
        "penalize_nl",
        *(name for name, each in OPTIONAL.items() if each not in SAMPLER_NAMES),
        "mirostat",
        "cache_salt",
        "repetition_penalty_with_bias",
    )
)
FORCING_BIAS, ALLOWING_BIAS = 10_000.0, 1_000.0
"""Biases beyond all logits. A float32 logit near the second is rounded to 6e-5."""
MIN_PROBABILITY = 1e-30
"""What a token must have to be there: `typ_p` would compute with the logarithm of 0 where a token is banned, and `xtc`
would take it for a likely one where the threshold is 0."""
FEW_PROBABILITIES = 512
BATCH_SECONDS = 25.0
"""How long an answer may take that waits for the batch that is computed."""
WHOLE_FIELDS = ("tokens", "completion_probabilities", "tokens_predicted", "timings", "stop")


class _Settings(msgspec.Struct):
    n_ctx: int


class _Properties(UpstreamAnswer, kw_only=True):
    """Of `/props`."""

    default_generation_settings: _Settings
    total_slots: int
    build_info: str | None = None
    model_path: str = ""


class _Meta(msgspec.Struct):
    size: int | None = None
    n_params: int | None = None


class _Model(msgspec.Struct):
    meta: _Meta


class _Models(UpstreamAnswer, kw_only=True):
    data: list[_Model]


class _Alternative(msgspec.Struct):
    id: int
    logprob: float | None


class _Probability(msgspec.Struct):
    """The log-probability of a token, and those of the most likely ones at its position."""

    id: int
    logprob: float | None
    top_logprobs: list[_Alternative]


class _Timings(msgspec.Struct):
    cache_n: int | None = None


class _Completion(UpstreamAnswer, kw_only=True):
    """An answer in one piece, or an event of a stream."""

    index: int = 0
    tokens: list[int] = msgspec.field(default_factory=list)
    tokens_predicted: int | None = None
    completion_probabilities: list[_Probability] = msgspec.field(default_factory=list)
    timings: _Timings | None = None
    stop: bool = False

    @property
    def is_progress(self) -> bool:
        return bool(self.tokens)  # an end is none: any number of them may follow

    def num_cached(self, num_prompt: int) -> int | None:
        """Return how many of so many tokens of the prompt were in the cache, None where it is not said: -1 until they
        are counted. Raises Malformed."""
        count = None if self.timings is None else self.timings.cache_n
        return None if count == -1 else cached_tokens(count, num_prompt)


class LlamaServer(Connected):
    """Implements `base.Upstream`."""

    traits = Traits(LACKS)

    async def probe(self) -> UpstreamInfo:
        props = await self._connection.get("/props", _Properties)
        models = await self._connection.get("/v1/models", _Models)
        if not 1 <= props.total_slots <= MAX_SLOTS:
            raise Malformed(f"a number of {props.total_slots} slots")
        meta, path = first_model(models.data).meta, props.model_path
        return UpstreamInfo(
            context_length=context_length(props.default_generation_settings.n_ctx),
            num_slots=props.total_slots,
            fingerprint=f"llama-server {props.build_info} {path} {meta.size} {meta.n_params}",
            model_path=path,
        )

    async def check_engine(self) -> None:
        """Its slots are listed by the thread that computes, between two batches. A token would take a slot, and the
        cached prompt from it: one is computed only where `--no-slots` says that they are not listed."""
        if not await self._connection.check("/slots", BATCH_SECONDS):
            await compute_token(self)

    async def encode(self, text: str) -> list[int]:
        body: Fields = {"content": text, "add_special": False, "parse_special": True}
        answer = await self._connection.post("/tokenize", body, TokenIds)
        return tokenized(answer.tokens, text)

    async def generate(self, segment: Segment) -> AsyncGenerator[AnswerPart]:
        body = request_body(segment)
        if segment.whole:
            answer = await self._complete(body, segment, segment.sampling.logprobs)
            num_cached = answer.num_cached(len(segment.tokens))
            yield AnswerPart(await self._reported(answer, segment), num_cached)
            return
        known, has_ended = 0, False
        stream = self._connection.stream(
            "/completion", body, _Completion, segment_bytes(segment), lambda event: event.is_progress, keep_alive=False
        )
        async with aclosing(stream) as events:
            async for event in events:
                tokens = self._tokens(event, segment)
                if event.tokens_predicted is not None and event.tokens_predicted > known + len(tokens):
                    yield AnswerPart(is_broken=True)
                    return
                known += len(tokens)
                if tokens:
                    yield AnswerPart(tokens, event.num_cached(len(segment.tokens)))
                has_ended = has_ended or event.stop
        if not has_ended:
            raise self._ended_early()

    async def score(
        self, tokens: tuple[int, ...], top: int, *, with_ranks: bool, salt: str = ""
    ) -> list[Sampled | None]:
        """It does not score prompts: each token is forced after those before it, which its cache holds, and is
        reported with its log-probability in the raw distribution. That takes a request per token."""
        params = SamplingParams(temperature=0.0, logprobs=top)
        found: list[Sampled | None] = [None]
        for position in range(1, len(tokens)):
            segment = Segment(tokens[:position], 0, 1, params, 0, whole=True)
            answer = await self._complete(request_body(segment) | _forcing(tokens[position]), segment, top)
            scored = await self._reported(answer, segment)
            if [one.token for one in scored] != [tokens[position]]:
                raise UpstreamError(f"{self._connection.url} sent another token than the one to score.")
            found += scored
        return found

    async def _complete(self, body: Fields, segment: Segment, num_top: int | None) -> _Completion:
        max_bytes = answer_bytes(segment.max_tokens, num_top, len(segment.tokens))
        return await self._connection.post("/completion", body, _Completion, max_bytes)

    async def _reported(self, answer: _Completion, segment: Segment) -> list[Sampled]:
        """Return the tokens of an answer in one piece."""
        if segment.sampling.logprobs is not None and not answer.completion_probabilities:
            answer.completion_probabilities = [await self._probability(segment, answer)]
        return self._tokens(answer, segment)

    async def _probability(self, segment: Segment, answer: _Completion) -> _Probability:
        """Return the entry of the one token of an answer that has none: it left a character incomplete.

        Another token, which does not, is forced at the same position; the list of the most likely ones has both.
        """
        if len(answer.tokens) != 1:
            raise Malformed("tokens without their log-probabilities")
        [token] = answer.tokens
        body = request_body(segment) | _forcing((await self.encode("a"))[0])
        for num_probs in (max(FEW_PROBABILITIES, segment.sampling.logprobs or 0), MAX_VOCABULARY):
            again = await self._complete(body | {"n_probs": num_probs}, segment, num_probs)
            top = again.completion_probabilities[0].top_logprobs if again.completion_probabilities else []
            for each in top:
                if each.id == token:
                    return _Probability(token, each.logprob, top)
        raise UpstreamError(f"{self._connection.url} does not know the probability of token {token}.")

    def _tokens(self, answer: _Completion, segment: Segment) -> list[Sampled]:
        """Return the tokens of an answer or event, with log-probabilities if the segment needs them."""
        if answer.index:
            raise Malformed(f"choice {answer.index}")
        if segment.sampling.logprobs is None:
            return [Sampled(token, float("nan"), ()) for token in answer.tokens]
        if [entry.id for entry in answer.completion_probabilities] != answer.tokens:
            raise Malformed("the log-probabilities of other tokens")
        return [_sampled(entry, segment.sampling.logprobs) for entry in answer.completion_probabilities]


def request_body(segment: Segment) -> Fields:
    """Return the request for a segment."""
    params = segment.sampling
    body: Fields = {
        "prompt": list(segment.tokens),
        "n_predict": segment.max_tokens,
        "stream": not segment.whole,
        "return_tokens": True,
        "cache_prompt": True,
        "timings_per_token": True,  # with the number of cached tokens
        "seed": segment.seed,
        "logit_bias": _biases(segment),
        **sampler_fields(params),
    }
    if segment.whole:
        body["response_fields"] = WHOLE_FIELDS
    if params.logprobs is not None:
        body["n_probs"] = max(1, params.logprobs)
    counted = segment.num_generated if params.penalty_last_n < 0 else min(segment.num_generated, params.penalty_last_n)
    if counted and params.has_penalties:
        samplers = body["samplers"]
        assert isinstance(samplers, list)
        body |= {
            "samplers": ["penalties", *samplers],
            "repeat_last_n": counted,
            "repeat_penalty": params.repetition_penalty,
            "presence_penalty": params.presence_penalty,
            "frequency_penalty": params.frequency_penalty,
        }
    return body


def _biases(segment: Segment) -> list[list[object]]:
    """Return what is added to logits. Of the tokens that are allowed and those that are not, the fewer are named."""
    params = segment.sampling
    biases: list[list[object]] = [[token, value] for token, value in (*params.logit_bias, *segment.penalties)]
    biases += [[token, False] for token in sorted(segment.banned)]
    if segment.allowed is None:
        return biases
    allowed = np.flatnonzero(segment.allowed).tolist()
    others = np.flatnonzero(~segment.allowed).tolist()
    if len(others) <= len(allowed) or _looks_at_all_logits(params):
        return biases + [[token, False] for token in others if token not in segment.banned]
    return biases + [[token, ALLOWING_BIAS] for token in allowed]


def _looks_at_all_logits(params: SamplingParams) -> bool:
    """Whether a bias for the tokens that are allowed would change more than which ones are."""
    return params.repetition_penalty != 1 or "top_n_sigma" in params.chain


def _forcing(token: int) -> Fields:
    """Return the field by which a token is sampled whatever its logit."""
    return {"logit_bias": [[token, FORCING_BIAS]]}


def sampler_fields(params: SamplingParams) -> Fields:
    """Return the samplers that act, in their order, and their parameters."""
    if params.is_greedy:
        return {"samplers": ["temperature"], "temperature": 0.0}
    chain = params.chain
    fields: Fields = {one.name: params.value(one.name) for name in chain for one in FILTERS[name].parameters}
    samplers = [SAMPLER_NAMES[name] for name in chain]
    if "typical_p" in chain and "min_p" not in chain:
        samplers.insert(0, "min_p")
        fields["min_p"] = MIN_PROBABILITY
    if "xtc" in chain:
        fields["xtc_threshold"] = max(params.value("xtc_threshold"), MIN_PROBABILITY)
    return {**fields, "samplers": samplers}


def _sampled(entry: _Probability, num_top: int) -> Sampled:
    """Return a token with its log-probabilities. Raises Malformed."""
    top = [(each.id, logprob(each.logprob, null_is_zero=True)) for each in entry.top_logprobs[:num_top]]
    return Sampled(entry.id, logprob(entry.logprob), tuple(top))
