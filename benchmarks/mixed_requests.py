"""Requests of every kind, mixed as from many clients: request n is a function of the seed and n alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.workload import WORDS

Body = dict[str, Any]
NUM_DOCUMENTS = 8
"""How many shared prefixes there are."""


@dataclass(frozen=True, slots=True)
class MixedRequest:
    """One request. `status` is the expected status; `is_malformed`: its JSON is to be corrupted.

    With `disconnect_seconds`, the client closes the connection after that time if it has no response yet.
    """

    body: Body
    status: int = 200
    disconnect_seconds: float | None = None
    is_malformed: bool = False
    kind: str = ""


class Mix:
    """Generates requests to a model. Token ids of prompts are in `tokens` (low, high), high excluded."""

    def __init__(self, model: str, *, tokens: tuple[int, int] = (256, 8000), seed: int = 0) -> None:
        self.tokens = tokens
        self._model, self._seed = model, seed

    def request(self, number: int) -> MixedRequest:
        """Return request `number`."""
        rng = random.Random(f"{self._seed} {number}")
        kind = rng.choices(list(KINDS), weights=[share for share, _ in KINDS.values()])[0]
        request = KINDS[kind][1](self, rng)
        body = {"model": self._model, "max_tokens": rng.randint(8, 32)} | request.body
        if request.status == 200 and rng.random() < 0.5:
            body["seed"] = number
        return replace(request, kind=kind, body=body)

    def ids(self, rng: random.Random, count: int) -> list[int]:
        low, high = self.tokens
        return [rng.randrange(low, high) for _ in range(count)]

    def document(self, rng: random.Random) -> str:
        """Return one of a few long texts with a random end."""
        shared = random.Random(f"{self._seed} document {rng.randrange(NUM_DOCUMENTS)}")
        return f"{words(shared, shared.randint(80, 300))} {words(rng, rng.randint(1, 12))}"


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def _plain(mix: Mix, rng: random.Random) -> MixedRequest:
    return MixedRequest({"prompt": words(rng, rng.randint(1, 80)), "temperature": rng.choice((0, 0.8, 1.2))})


def _streamed(mix: Mix, rng: random.Random) -> MixedRequest:
    body: Body = {"prompt": words(rng, rng.randint(1, 80)), "stream": True}
    if rng.random() < 0.5:
        body["stream_options"] = {"include_usage": True}
    return MixedRequest(body)


def _token_prompt(mix: Mix, rng: random.Random) -> MixedRequest:
    return MixedRequest({"prompt": mix.ids(rng, rng.randint(1, 250)), "stream": rng.random() < 0.5})


def _shared_prefix(mix: Mix, rng: random.Random) -> MixedRequest:
    return MixedRequest({"prompt": mix.document(rng), "stream": rng.random() < 0.5})


def _choices(mix: Mix, rng: random.Random) -> MixedRequest:
    return MixedRequest({"prompt": mix.document(rng), "n": rng.randint(2, 4), "stream": rng.random() < 0.5})


def _ranked(mix: Mix, rng: random.Random) -> MixedRequest:
    return MixedRequest({"prompt": words(rng, 20), "n": rng.randint(1, 2), "best_of": 3, "logprobs": 1})


def _logprobs(mix: Mix, rng: random.Random) -> MixedRequest:
    body = {"prompt": words(rng, 20), "logprobs": rng.randint(0, 5), "stream": rng.random() < 0.5}
    return MixedRequest(body)


def _scored(mix: Mix, rng: random.Random) -> MixedRequest:
    """As an evaluation harness does: several continuations of one context."""
    context = mix.ids(rng, rng.randint(10, 120))
    prompts = [context + mix.ids(rng, rng.randint(1, 9)) for _ in range(rng.randint(1, 4))]
    return MixedRequest({"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": rng.randint(0, 1)})


def _stops(mix: Mix, rng: random.Random) -> MixedRequest:
    return MixedRequest({"prompt": mix.document(rng), "stop": [".", " the", "zzz"], "stream": rng.random() < 0.5})


def _infill(mix: Mix, rng: random.Random) -> MixedRequest:
    return MixedRequest({"prompt": words(rng, 30), "suffix": words(rng, 10)})


def _predicted(mix: Mix, rng: random.Random) -> MixedRequest:
    expected = {"type": "content", "content": words(rng, 30)}
    return MixedRequest({"prompt": mix.document(rng), "prediction": expected, "stream": rng.random() < 0.5})


def _several_prompts(mix: Mix, rng: random.Random) -> MixedRequest:
    return MixedRequest({"prompt": [words(rng, rng.randint(1, 20)) for _ in range(8)]})


def _edited(mix: Mix, rng: random.Random) -> MixedRequest:
    low, high = mix.tokens
    bias = {str(rng.randrange(low, high)): 5, str(low): -100}
    return MixedRequest({"prompt": words(rng, 20), "logit_bias": bias, "frequency_penalty": 0.5, "top_p": 0.9})


def _rejected(mix: Mix, rng: random.Random) -> MixedRequest:
    status, wrong = rng.choice(REJECTIONS)
    return MixedRequest({"prompt": "the"} | wrong, status, is_malformed=not wrong)


REJECTIONS: tuple[tuple[int, Body], ...] = (
    (400, {}),
    (400, {"temperature": 9}),
    (400, {"max_tokens": 10_000_000}),
    (400, {"prompt": [10_000_000]}),
    (400, {"no_such_field": [1, 2, 3]}),
    (400, {"n": 4, "best_of": 2}),
    (404, {"model": "nobody"}),
)
"""Bodies that are rejected, with the status; an empty one stands for malformed JSON."""


def _disconnecting(mix: Mix, rng: random.Random) -> MixedRequest:
    body = {"prompt": mix.document(rng), "max_tokens": 200, "ignore_eos": True, "n": rng.randint(1, 2)}
    return MixedRequest(body | {"stream": rng.random() < 0.7}, disconnect_seconds=rng.uniform(0, 0.25))


KINDS: dict[str, tuple[int, Callable[[Mix, random.Random], MixedRequest]]] = {
    "plain": (12, _plain),
    "streamed": (12, _streamed),
    "token prompt": (6, _token_prompt),
    "shared prefix": (16, _shared_prefix),
    "choices": (6, _choices),
    "best_of": (4, _ranked),
    "logprobs": (6, _logprobs),
    "scored": (10, _scored),
    "stops": (6, _stops),
    "infill": (4, _infill),
    "prediction": (4, _predicted),
    "several prompts": (2, _several_prompts),
    "penalties and bias": (3, _edited),
    "refused": (5, _rejected),
    "client leaves": (4, _disconnecting),
}
"""Kind → (its share in per cent, function that creates a request)."""
