"""Laws 2 and 3 on models whose layers differ: with short convolutions (LFM2), which read kept rows of earlier
positions, and with keys shared between layers (Gemma 4). Alone, among others, from the prefix cache, from a disk, with
drafts, with too little memory, and resumed."""

from __future__ import annotations

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from onward.api.openai.decode import check_request
from onward.backends.embedded import EmbeddedBackend
from onward.completions.limits import RequestLimits
from onward.completions.plan import ServedModel, plan
from onward.compose import compose
from onward.engine.step import Engine
from onward.model_files.gguf import GGUFFiles
from onward.sampling.sampler import Sampler
from onward.settings import Settings
from tests.engine.harness import events_of
from tests.examples import slow_but
from tests.laws.resuming import by_choice, remaining_jobs
from tests.runtimes.native.test_model import load, write
from tests.toy_backend import complete, running

BEGINNING = "abc hello this is a prompt of many letters and blocks " * 2
SHAPES: dict[str, dict[str, Any]] = {
    "sampled": {"prompt": BEGINNING, "temperature": 0.9, "max_tokens": 30, "logprobs": 3},
    "greedy": {"prompt": BEGINNING[:50] + "xyz", "temperature": 0, "max_tokens": 30, "logprobs": 1},
    "short": {"prompt": "q", "temperature": 1.1, "max_tokens": 5, "logprobs": 1},
    "scored": {"prompt": BEGINNING[:41] + "zz", "echo": True, "logprobs": 2, "max_tokens": 1},
    "choices": {"prompt": BEGINNING[:70], "n": 4, "max_tokens": 24, "temperature": 1.2, "logprobs": 1},
    "best": {"prompt": ["abc", BEGINNING], "n": 2, "best_of": 4, "max_tokens": 16, "logprobs": 0},
    "drafted": {"prompt": BEGINNING, "temperature": 0, "max_tokens": 60, "prediction": "ab" * 40, "logprobs": 1},
    "repeating": {"prompt": "ab" * 60, "temperature": 0, "max_tokens": 60, "logprobs": 1},
}
Alone = dict[str, list[dict[str, Any]]]


def make_backend(path: Path, **changes: Any) -> EmbeddedBackend:
    return compose(Settings(model=(str(path),), kv_memory=changes.pop("kv_memory", 8_000_000), **changes))


async def ask(backend: EmbeddedBackend, shape: str) -> list[dict[str, Any]]:
    fields = dict(SHAPES[shape])
    if "prediction" in fields:
        fields["prediction"] = {"type": "content", "content": fields["prediction"]}
    answer = await complete(backend, model="m", seed=5, ignore_eos=True, **fields)
    return [choice.to_dict() for choice in answer.choices]


async def noise(backend: EmbeddedBackend, rng: random.Random, longest: int = 90) -> None:
    await asyncio.sleep(rng.random() * 0.1)
    prompt, count = BEGINNING[: rng.randrange(1, 100)], rng.randrange(1, 4)
    await complete(
        backend, model="m", prompt=prompt, n=count, max_tokens=rng.randrange(1, longest), ignore_eos=longest > 90
    )


@pytest.fixture(scope="module", params=slow_but(["lfm2"], ["lfm2", "lfm2moe", "gemma4"]))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("hybrid"), str(request.param))


@pytest.fixture(scope="module")
def alone(path: Path) -> Alone:
    return answers_alone(path)


def answers_alone(path: Path) -> Alone:
    """Return the answer to each shape, of a backend that has processed nothing else."""

    async def each(shape: str) -> list[dict[str, Any]]:
        async with running(make_backend(path, prefix_cache=False, threads=1)) as backend:
            return await ask(backend, shape)

    return {shape: asyncio.run(each(shape)) for shape in SHAPES}


def answers_in_a_crowd(path: Path) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return three answers to each shape, with its name, of a backend that is asked for all at once, among others."""

    async def crowded() -> list[tuple[str, list[dict[str, Any]]]]:
        rng = random.Random(3)
        async with running(make_backend(path, max_rows=16, threads=3)) as backend:
            crowd = [asyncio.create_task(noise(backend, rng)) for _ in range(16)]
            rounds = [shape for _ in range(3) for shape in SHAPES]
            answers = await asyncio.gather(*(ask(backend, shape) for shape in rounds))
            await asyncio.gather(*crowd)
            return list(zip(rounds, answers, strict=True))

    return asyncio.run(crowded())


def test_law_2_and_3_the_same_bytes_among_neighbours_and_cached(alone: Alone, path: Path) -> None:
    for shape, answer in answers_in_a_crowd(path):
        assert answer == alone[shape], shape


@pytest.mark.slow
def test_law_2_the_same_bytes_when_memory_is_tight(alone: Alone, path: Path) -> None:
    async def tight() -> list[tuple[str, list[dict[str, Any]]]]:
        rng = random.Random(4)
        async with running(make_backend(path, kv_memory=600_000)) as backend:
            crowd = [asyncio.create_task(noise(backend, rng, longest=300)) for _ in range(24)]
            answers = await asyncio.gather(*(ask(backend, shape) for shape in SHAPES))
            await asyncio.gather(*crowd)
            assert backend.load()["m"].num_preemptions > 0, "memory must be too small for all"
            return list(zip(SHAPES, answers, strict=True))

    for shape, answer in asyncio.run(tight()):
        assert answer == alone[shape], shape


@pytest.mark.slow
def test_law_3_the_same_bytes_from_a_disk(alone: Alone, path: Path, tmp_path: Path) -> None:
    async def all_shapes() -> list[tuple[str, list[dict[str, Any]]]]:
        async with running(make_backend(path, prefix_cache_dir=tmp_path / "cache")) as backend:
            answers = [(shape, await ask(backend, shape)) for shape in [*SHAPES, *SHAPES]]
            read.append(backend.load()["m"].num_disk_tokens)
            return answers

    read: list[int] = []
    for _ in range(2):
        for shape, answer in asyncio.run(all_shapes()):
            assert answer == alone[shape], shape
    assert read[1] > 0


def test_law_2_a_job_cut_at_any_step_and_resumed_continues_with_the_same_bits(path: Path) -> None:
    loaded, tokenizer, ids = load(path), GGUFFiles(path).load_tokenizer(), itertools.count()
    model = loaded.model

    def engine() -> Engine:
        return Engine(model, tokenizer, Sampler(model.vocab_size))

    try:
        served = ServedModel.create("m", tokenizer, model.vocab_size, model.context_length)
        requests = [
            check_request({"model": "m", "seed": 1, "ignore_eos": True, **SHAPES[shape]})
            for shape in ("sampled", "greedy", "choices")
        ]
        plans = [plan(each, served, number, ids, RequestLimits()) for number, each in enumerate(requests)]
        jobs = [job for planned in plans for job in planned.jobs]
        whole = by_choice(events_of(engine(), jobs))
        for cut in (1, 2, 7, 20):
            first = events_of(engine(), jobs, max_steps=cut)
            rest = remaining_jobs(jobs, first)
            assert any(job.resume for job in rest)
            assert by_choice(first + events_of(engine(), rest)) == whole
    finally:
        model.close()
