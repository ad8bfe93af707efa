"""Law 2 on a real model: 200 seeded requests of mixed shapes return the same bytes however they are served."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import pytest

from onward.api.openai.reply import FoldedChoices
from onward.api.openai.response import Choice
from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.settings import Settings
from onward.values import Precision
from tests.processes import served
from tests.toy_backend import complete, let_steps_count_the_same, running, stream

pytestmark = [pytest.mark.slow, pytest.mark.real]


NUM_REQUESTS = 200
ARRIVAL_SECONDS = 1.5
"""Within which all are sent: enough that many are prefilled while others decode."""
TEXT = (
    "once upon a time there was a king who had three sons and the youngest of them was called simple because he "
    "said little and laughed often. def main(args): return [x for x in args if x] # the fox and the crow\n"
)
WORDS = TEXT.split(" ")


def make_request(number: int) -> dict[str, Any]:
    """One of many shapes; a function of its number alone. Some share long prefixes with others."""
    rng = random.Random(number)
    prefix = " ".join(random.Random(number % 7).choices(WORDS, k=rng.choice([0, 0, 40, 120, 260])))
    prompt: Any = f"{prefix} {' '.join(rng.choices(WORDS, k=rng.randrange(1, 30)))}"
    if rng.random() < 0.15:
        prompt = [prompt, " ".join(rng.choices(WORDS, k=9))]
    fields: dict[str, Any] = {
        "model": "storyteller",
        "prompt": prompt,
        "seed": rng.randrange(1 << 40),
        "max_tokens": rng.choice([1, 2, 8, 20, 40]),
        "temperature": rng.choice([0, 0.3, 0.8, 1.0, 1.6]),
        "top_p": rng.choice([1, 1, 0.95, 0.5]),
        "top_k": rng.choice([0, 0, 40]),
        "n": rng.choice([1, 1, 1, 2, 5]),
    }
    if rng.random() < 0.3:
        fields |= {"logprobs": rng.choice([0, 1, 5]), "echo": rng.random() < 0.5}
    if rng.random() < 0.2:
        fields |= {"stop": [".", " the"], "presence_penalty": 0.5}
    if rng.random() < 0.15 and "echo" not in fields:
        fields |= {"suffix": " and they lived happily."}
    return fields


def with_prediction(fields: dict[str, Any], texts: list[str], rng: random.Random) -> dict[str, Any]:
    """The request with a prediction of its completion: correct, edited in a few places, or unrelated."""
    words = rng.choice([*texts, " ".join(WORDS)]).split(" ")
    for _ in range(rng.choice([0, 0, 2, 6])):
        index = rng.randrange(len(words) + 1)
        words[index : index + rng.randrange(3)] = rng.choices(WORDS, k=rng.randrange(3))
    return fields | {"prediction": {"type": "content", "content": " ".join(words)}}


def bits(choices: list[Choice]) -> list[dict[str, Any]]:
    return [choice.to_dict() for choice in choices]


async def whole(backend: EmbeddedBackend, fields: dict[str, Any]) -> list[dict[str, Any]]:
    return bits((await complete(backend, **fields)).choices)


async def streamed(backend: EmbeddedBackend, fields: dict[str, Any]) -> list[dict[str, Any]]:
    folded = FoldedChoices()
    for chunk in await stream(backend, **fields):
        folded.add(chunk.choices)
    return bits(folded.choices())


CompleteAs = Callable[[EmbeddedBackend, dict[str, Any]], Awaitable[list[dict[str, Any]]]]
"""`whole` or `streamed`."""


async def all_at_random_times(
    backend: EmbeddedBackend, seed: int, alone: dict[int, list[dict[str, Any]]]
) -> dict[int, list[dict[str, Any]]]:
    """The answers to all requests, sent at random times, streamed or not, a third with their answer in `alone` as the
    prediction, among unseeded ones, some of which are cancelled."""
    rng = random.Random(seed)
    answers: dict[int, list[dict[str, Any]]] = {}

    def fields_of(number: int) -> dict[str, Any]:
        fields = make_request(number)
        if rng.random() < 1 / 3:
            return with_prediction(fields, [choice["text"] for choice in alone[number]], rng)
        return fields

    async def one(number: int, delay: float, complete_as: CompleteAs) -> None:
        await asyncio.sleep(delay)
        answers[number] = await complete_as(backend, fields_of(number))

    async def unseeded(delay: float, timeout: float) -> None:
        await asyncio.sleep(delay)
        fields = make_request(rng.randrange(1 << 30)) | {"seed": None}
        try:
            async with asyncio.timeout(timeout):
                await whole(backend, fields)
        except TimeoutError:
            pass

    tasks = [one(n, rng.random() * ARRIVAL_SECONDS, rng.choice([whole, streamed])) for n in range(NUM_REQUESTS)]
    tasks += [unseeded(rng.random() * ARRIVAL_SECONDS, rng.choice([0.05, 60])) for _ in range(NUM_REQUESTS // 2)]
    await asyncio.gather(*tasks)
    return answers


async def a_few_at_a_time(
    backend: EmbeddedBackend, alone: dict[int, list[dict[str, Any]]]
) -> dict[int, list[dict[str, Any]]]:
    """The answers to all requests, two thirds with their answer in `alone` as the prediction, sent by four clients,
    each of which waits for one answer at a time."""
    rng = random.Random(4)
    answers: dict[int, list[dict[str, Any]]] = {}
    numbers = iter(range(NUM_REQUESTS))

    async def client() -> None:
        for number in numbers:
            fields = make_request(number)
            if rng.random() < 2 / 3:
                fields = with_prediction(fields, [choice["text"] for choice in alone[number]], rng)
            answers[number] = await rng.choice([whole, streamed])(backend, fields)

    await asyncio.gather(*(client() for _ in range(4)))
    return answers


@pytest.fixture(scope="module", params=["fast", "exact"])
def precision(request: pytest.FixtureRequest) -> Precision:
    return "exact" if request.param == "exact" else "fast"


@pytest.fixture(scope="module")
def alone(precision: Precision) -> dict[int, list[dict[str, Any]]]:
    """The answer to each request by itself, one after the other, without a prefix cache and without speculation."""

    async def each() -> dict[int, list[dict[str, Any]]]:
        settings = Settings(model=("storyteller",), prefix_cache=False, speculation="off", precision=precision)
        async with running(compose(settings)) as backend:
            return {number: await whole(backend, make_request(number)) for number in range(NUM_REQUESTS)}

    return asyncio.run(each())


@pytest.mark.parametrize(
    "changes",
    [
        {"prefix_cache": True},
        {"prefix_cache": False},
        {"prefix_cache": True, "max_rows": 5},
        {"prefix_cache": True, "kv_memory": 2_500_000},
        {"prefix_cache": True, "threads": 1},
        {"prefix_cache": True, "speculation": "off"},
    ],
    ids=["cache", "no cache", "few rows", "scarce memory", "one thread", "no speculation"],
)
def test_law_2_200_requests_return_the_same_bytes(
    alone: dict[int, list[dict[str, Any]]], precision: Precision, changes: dict[str, Any]
) -> None:
    async def together() -> dict[int, list[dict[str, Any]]]:
        async with running(compose(Settings(model=("storyteller",), precision=precision, **changes))) as backend:
            answers = await all_at_random_times(backend, len(changes), alone)
            drafts = backend.load()["storyteller"].drafts
            if changes.get("speculation") == "off":
                assert not drafts.total
            return answers

    assert_same(asyncio.run(together()), alone)


def test_law_2_200_requests_return_the_same_bytes_with_many_drafts(
    alone: dict[int, list[dict[str, Any]]], precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few drafts pay off among many requests. Here all count as paying, and few requests prefill while others
    decode."""
    let_steps_count_the_same(monkeypatch)

    async def drafted() -> dict[int, list[dict[str, Any]]]:
        async with running(compose(Settings(model=("storyteller",), precision=precision))) as backend:
            answers = await a_few_at_a_time(backend, alone)
            drafts = backend.load()["storyteller"].drafts
            assert min(drafts.prediction_accepted, drafts.prediction_rejected) > 10
            assert min(drafts.lookup_accepted, drafts.lookup_rejected) > 10
            return answers

    assert_same(asyncio.run(drafted()), alone)


def test_law_2_a_restarted_server_returns_the_same_bytes_whole_and_streamed(
    alone: dict[int, list[dict[str, Any]]], precision: Precision
) -> None:
    """Over HTTP, by two processes one after the other, twelve requests at a time."""
    for process in range(2):
        with served("--precision", precision, model="storyteller") as url, ThreadPoolExecutor(12) as pool:
            whole_answers = list(pool.map(lambda number: post(url, make_request(number)), range(0, NUM_REQUESTS, 2)))
            streams = list(pool.map(lambda number: post_streamed(url, make_request(number)), range(1, NUM_REQUESTS, 2)))
        assert whole_answers == [alone[number] for number in range(0, NUM_REQUESTS, 2)], f"process {process}"
        assert streams == [[summary(choice) for choice in alone[number]] for number in range(1, NUM_REQUESTS, 2)]


def assert_same(answers: dict[int, list[dict[str, Any]]], alone: dict[int, list[dict[str, Any]]]) -> None:
    different = [number for number in range(NUM_REQUESTS) if answers[number] != alone[number]]
    assert not different, f"{len(different)} differ, the first: {make_request(different[0])}"


def summary(choice: dict[str, Any]) -> tuple[str, str, list[float | None]]:
    logprobs = (choice["logprobs"] or {}).get("token_logprobs") or []
    return choice["text"], choice["finish_reason"], logprobs


def post(url: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
    with urlopen(http_request(url, fields), timeout=120) as response:
        choices: list[dict[str, Any]] = json.load(response)["choices"]
    return choices


def post_streamed(url: str, fields: dict[str, Any]) -> list[tuple[str, str, list[float | None]]]:
    whole: dict[int, dict[str, Any]] = {}
    with urlopen(http_request(url, fields | {"stream": True}), timeout=120) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            for part in json.loads(line[6:])["choices"]:
                choice = whole.setdefault(part["index"], {"text": "", "logprobs": {"token_logprobs": []}})
                choice["text"] += part["text"]
                choice["finish_reason"] = part["finish_reason"]
                choice["logprobs"]["token_logprobs"] += (part["logprobs"] or {}).get("token_logprobs") or []
    return [summary(whole[index]) for index in sorted(whole)]


def http_request(url: str, fields: dict[str, Any]) -> Request:
    return Request(f"{url}/v1/completions", json.dumps(fields).encode(), {"content-type": "application/json"})
