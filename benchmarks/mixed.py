"""Requests of every kind, mixed as many clients would: the n-th is a function of the seed and n alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.workload import WORDS

Body = dict[str, Any]
DOCUMENTS = 8
"""How many shared prefixes there are."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `status` is what a right server answers; `broken`: its JSON is to be cut off. A client that
    leaves closes the connection after `leave` seconds, if it has no answer by then."""

    body: Body
    status: int = 200
    leave: float | None = None
    broken: bool = False
    kind: str = ""


class Mix:
    """Draws requests to a model. Prompts of token ids come from `tokens` (low, high), high left out."""

    def __init__(self, model: str, *, tokens: tuple[int, int] = (256, 8000), seed: int = 0) -> None:
        self.tokens = tokens
        self._model, self._seed = model, seed

    def ask(self, number: int) -> Ask:
        """Request `number`."""
        chance = random.Random(f"{self._seed} {number}")
        kind = chance.choices(list(KINDS), weights=[share for share, _ in KINDS.values()])[0]
        made = KINDS[kind][1](self, chance)
        body = {"model": self._model, "max_tokens": chance.randint(8, 32)} | made.body
        if made.status == 200 and chance.random() < 0.5:
            body["seed"] = number
        return replace(made, kind=kind, body=body)

    def ids(self, chance: random.Random, count: int) -> list[int]:
        low, high = self.tokens
        return [chance.randrange(low, high) for _ in range(count)]

    def document(self, chance: random.Random) -> str:
        """One of a few long texts, with an end of its own."""
        shared = random.Random(f"{self._seed} document {chance.randrange(DOCUMENTS)}")
        return f"{words(shared, shared.randint(80, 300))} {words(chance, chance.randint(1, 12))}"


def words(chance: random.Random, count: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(count))


def _plain(mix: Mix, chance: random.Random) -> Ask:
    return Ask({"prompt": words(chance, chance.randint(1, 80)), "temperature": chance.choice((0, 0.8, 1.2))})


def _streamed(mix: Mix, chance: random.Random) -> Ask:
    body: Body = {"prompt": words(chance, chance.randint(1, 80)), "stream": True}
    if chance.random() < 0.5:
        body["stream_options"] = {"include_usage": True}
    return Ask(body)


def _token_prompt(mix: Mix, chance: random.Random) -> Ask:
    return Ask({"prompt": mix.ids(chance, chance.randint(1, 250)), "stream": chance.random() < 0.5})


def _shared_prefix(mix: Mix, chance: random.Random) -> Ask:
    return Ask({"prompt": mix.document(chance), "stream": chance.random() < 0.5})


def _choices(mix: Mix, chance: random.Random) -> Ask:
    return Ask({"prompt": mix.document(chance), "n": chance.randint(2, 4), "stream": chance.random() < 0.5})


def _ranked(mix: Mix, chance: random.Random) -> Ask:
    return Ask({"prompt": words(chance, 20), "n": chance.randint(1, 2), "best_of": 3, "logprobs": 1})


def _logprobs(mix: Mix, chance: random.Random) -> Ask:
    body = {"prompt": words(chance, 20), "logprobs": chance.randint(0, 5), "stream": chance.random() < 0.5}
    return Ask(body)


def _scored(mix: Mix, chance: random.Random) -> Ask:
    """As an evaluation harness asks: several continuations of one context."""
    context = mix.ids(chance, chance.randint(10, 120))
    prompts = [context + mix.ids(chance, chance.randint(1, 9)) for _ in range(chance.randint(1, 4))]
    return Ask({"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": chance.randint(0, 1)})


def _stops(mix: Mix, chance: random.Random) -> Ask:
    return Ask({"prompt": mix.document(chance), "stop": [".", " the", "zzz"], "stream": chance.random() < 0.5})


def _infill(mix: Mix, chance: random.Random) -> Ask:
    return Ask({"prompt": words(chance, 30), "suffix": words(chance, 10)})


def _predicted(mix: Mix, chance: random.Random) -> Ask:
    expected = {"type": "content", "content": words(chance, 30)}
    return Ask({"prompt": mix.document(chance), "prediction": expected, "stream": chance.random() < 0.5})


def _several_prompts(mix: Mix, chance: random.Random) -> Ask:
    return Ask({"prompt": [words(chance, chance.randint(1, 20)) for _ in range(8)]})


def _edited(mix: Mix, chance: random.Random) -> Ask:
    low, high = mix.tokens
    bias = {str(chance.randrange(low, high)): 5, str(low): -100}
    return Ask({"prompt": words(chance, 20), "logit_bias": bias, "frequency_penalty": 0.5, "top_p": 0.9})


def _refused(mix: Mix, chance: random.Random) -> Ask:
    status, wrong = chance.choice(REFUSALS)
    return Ask({"prompt": "the"} | wrong, status, broken=not wrong)


REFUSALS: tuple[tuple[int, Body], ...] = (
    (400, {}),
    (400, {"temperature": 9}),
    (400, {"max_tokens": 10_000_000}),
    (400, {"prompt": [10_000_000]}),
    (400, {"no_such_field": [1, 2, 3]}),
    (400, {"n": 4, "best_of": 2}),
    (404, {"model": "nobody"}),
)
"""Bodies that are refused, with the status; an empty one stands for broken JSON."""


def _leaving(mix: Mix, chance: random.Random) -> Ask:
    body = {"prompt": mix.document(chance), "max_tokens": 200, "ignore_eos": True, "n": chance.randint(1, 2)}
    return Ask(body | {"stream": chance.random() < 0.7}, leave=chance.uniform(0, 0.25))


KINDS: dict[str, tuple[int, Callable[[Mix, random.Random], Ask]]] = {
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
    "refused": (5, _refused),
    "client leaves": (4, _leaving),
}
"""Kind → (its share in per cent, what makes one)."""
