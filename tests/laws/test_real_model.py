"""The laws on real weights: storyteller through the embedded backend."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from onward.api.openai.reply import FoldedChoices
from onward.api.openai.response import Completion
from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.settings import Settings
from tests.narrowing import logprobs_of
from tests.toy_backend import complete, running, settle, stream

pytestmark = pytest.mark.real

STORY = (
    "Once upon a time there was a little fox who lived at the edge of a great wood. Every morning the fox went "
    "down to the river to drink, and every morning the old bear was there before him. "
)
SHAPES: dict[str, dict[str, Any]] = {
    "sampled": {"prompt": STORY, "temperature": 0.9, "top_p": 0.95, "max_tokens": 40, "logprobs": 3},
    "greedy": {"prompt": "The king said", "temperature": 0, "max_tokens": 40, "logprobs": 1},
    "scored": {"prompt": STORY * 2, "echo": True, "logprobs": 2, "max_tokens": 1},
    "choices": {"prompt": STORY, "n": 4, "max_tokens": 24, "temperature": 1.2},
    "best": {"prompt": ["The cat", STORY], "n": 2, "best_of": 4, "max_tokens": 16, "logprobs": 0},
    "infill": {
        "prompt": "The girl opened the ",
        "suffix": " and saw a dragon.",
        "max_tokens": 16,
        "temperature": 0.5,
    },
    "stopped": {"prompt": STORY, "stop": [".", "\n"], "max_tokens": 60, "presence_penalty": 0.4},
    "long": {"prompt": STORY * 12, "max_tokens": 8, "logprobs": 1, "echo": True},
}


Alone = dict[str, list[dict[str, Any]]]
"""The choices of each shape."""


def make_backend(**changes: Any) -> EmbeddedBackend:
    return compose(Settings(model=("storyteller",), **changes))


async def ask(backend: EmbeddedBackend, shape: str, seed: int = 5) -> Completion:
    return await complete(backend, **{"model": "storyteller", "seed": seed, **SHAPES[shape]})


def bits(completion: Completion) -> list[dict[str, Any]]:
    return [choice.to_dict() for choice in completion.choices]


async def noise(backend: EmbeddedBackend, rng: random.Random, longest: int = 30) -> None:
    words = STORY.split()
    await asyncio.sleep(rng.random() * 0.2)
    await complete(
        backend,
        model="storyteller",
        prompt=" ".join(rng.choices(words, k=rng.randrange(1, 60))),
        n=rng.randrange(1, 3),
        max_tokens=rng.randrange(1, longest),
        ignore_eos=longest > 30,
    )


@pytest.fixture(scope="module")
def alone() -> dict[str, list[dict[str, Any]]]:
    """Each shape on a backend that has processed nothing else."""

    async def each(shape: str) -> list[dict[str, Any]]:
        async with running(make_backend(prefix_cache=False)) as backend:
            return bits(await ask(backend, shape))

    return {shape: asyncio.run(each(shape)) for shape in SHAPES}


def test_law_1_streams_equal_complete_responses(alone: Alone) -> None:
    async def streamed(shape: str, backend: EmbeddedBackend) -> list[dict[str, Any]]:
        folded = FoldedChoices()
        for chunk in await stream(backend, **{"model": "storyteller", "seed": 5, **SHAPES[shape]}):
            folded.add(chunk.choices)
        return [choice.to_dict() for choice in folded.choices()]

    async def all_shapes() -> dict[str, Any]:
        async with running(make_backend()) as backend:
            return {shape: await streamed(shape, backend) for shape in SHAPES if shape != "best"}

    assert asyncio.run(all_shapes()) == {shape: whole for shape, whole in alone.items() if shape != "best"}


@pytest.mark.parametrize("prefix_cache", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["cache", "no cache"])
def test_law_2_and_3_the_same_bytes_among_32_neighbours_cached_or_not(alone: Alone, prefix_cache: bool) -> None:
    async def crowded() -> list[tuple[str, list[dict[str, Any]]]]:
        rng = random.Random(3)
        async with running(make_backend(prefix_cache=prefix_cache, max_rows=32, threads=2)) as backend:
            crowd = [asyncio.create_task(noise(backend, rng)) for _ in range(32)]
            rounds = [shape for _ in range(2) for shape in SHAPES]
            answers = await asyncio.gather(*(ask(backend, shape) for shape in rounds))
            await asyncio.gather(*crowd)
            return [(shape, bits(answer)) for shape, answer in zip(rounds, answers, strict=True)]

    for shape, answer in asyncio.run(crowded()):
        assert answer == alone[shape], shape


@pytest.mark.slow
def test_law_2_the_same_bytes_when_memory_is_tight(alone: Alone) -> None:
    async def tight() -> list[tuple[str, list[dict[str, Any]]]]:
        rng = random.Random(4)
        backend = make_backend(kv_memory=1_500_000)
        async with running(backend):
            crowd = [asyncio.create_task(noise(backend, rng, longest=200)) for _ in range(24)]
            answers = await asyncio.gather(*(ask(backend, shape) for shape in SHAPES))
            await asyncio.gather(*crowd)
            assert backend.load()["storyteller"].num_preemptions > 0, "memory must be too small for all"
            return [(shape, bits(answer)) for shape, answer in zip(SHAPES, answers, strict=True)]

    for shape, answer in asyncio.run(tight()):
        assert answer == alone[shape], shape


@pytest.mark.slow
def test_law_3_the_same_bytes_from_a_disk(alone: Alone, tmp_path: Path) -> None:
    """In memory for three prompts: most come from the disk even before the restart."""

    async def all_shapes() -> list[tuple[str, list[dict[str, Any]]]]:
        async with running(make_backend(prefix_cache_dir=tmp_path / "cache", kv_memory=1_500_000)) as backend:
            answers = [(shape, bits(await ask(backend, shape))) for shape in [*SHAPES, *SHAPES]]
            read.append(backend.load()["storyteller"].num_disk_tokens)
            return answers

    read: list[int] = []
    for _ in range(2):
        for shape, answer in asyncio.run(all_shapes()):
            assert answer == alone[shape], shape
    assert read[1] > 0


def test_law_3_a_long_prompt_is_computed_once() -> None:
    async def twice() -> tuple[Completion, Completion, int]:
        async with running(make_backend()) as backend:
            first = await ask(backend, "long")
            before = backend.load()["storyteller"].num_prefill_tokens
            second = await ask(backend, "long")
            return first, second, backend.load()["storyteller"].num_prefill_tokens - before

    first, second, computed = asyncio.run(twice())
    assert bits(first) == bits(second)
    assert second.usage.prompt_tokens_details.cached_tokens >= second.usage.prompt_tokens - 98
    assert computed < 100


def test_law_4_nothing_is_left_after_many_cancelled_requests() -> None:
    async def storm() -> None:
        rng = random.Random(9)
        async with running(make_backend()) as backend:
            for _ in range(3):
                tasks = [asyncio.create_task(noise(backend, rng)) for _ in range(24)]
                await asyncio.sleep(0.15)
                for task in tasks:
                    if rng.random() < 0.6:
                        task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            await settle(backend)
            assert (await ask(backend, "greedy")).choices

    asyncio.run(storm())


def test_law_5_choices_of_one_prompt_differ_and_share_its_prefill() -> None:
    async def many() -> tuple[Completion, int]:
        async with running(make_backend()) as backend:
            answer = await complete(
                backend, model="storyteller", prompt=STORY * 4, n=8, max_tokens=12, temperature=1.0, seed=1
            )
            return answer, backend.load()["storyteller"].num_prefill_tokens

    answer, computed = asyncio.run(many())
    assert len({choice.text for choice in answer.choices}) >= 6
    assert computed == answer.usage.prompt_tokens


def test_law_6_the_tokens_of_a_text_join_to_it() -> None:
    text = "naïve café — 🙂🦊 日本\r\n\tdef f(x):\n        return x  # ﷽ \u0301"

    async def scored() -> Completion:
        async with running(make_backend()) as backend:
            return await complete(backend, model="storyteller", prompt=text, echo=True, logprobs=0, max_tokens=0)

    logprobs = logprobs_of(asyncio.run(scored()).choices[0])
    data = b"".join(
        name.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")
        if name.startswith("bytes:")
        else name.encode()
        for name in logprobs.tokens
    )
    assert data.decode() == text
    assert logprobs.text_offset == sorted(logprobs.text_offset)
