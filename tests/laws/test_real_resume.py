"""Law 2 on the built-in model: jobs that are cut and resumed in another engine emit exactly the remaining tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from onward.api.openai.decode import check_request
from onward.completions.limits import RequestLimits
from onward.completions.plan import ServedModel, plan
from onward.engine.model import ModelRunner, Tokenizer
from onward.engine.step import Engine
from onward.models.resolve import resolve
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from onward.sampling.sampler import Sampler
from tests.engine.harness import events_of
from tests.laws.resuming import by_choice, remaining_jobs

pytestmark = pytest.mark.real

REQUESTS = (
    {"prompt": "Once upon a time", "n": 3, "seed": 1, "logprobs": 2, "max_tokens": 40},
    {"prompt": "The little fox", "temperature": 0, "max_tokens": 40, "ignore_eos": True, "logprobs": 0},
    {"prompt": "def add(a, b):", "suffix": "\n", "seed": 3, "max_tokens": 30, "logprobs": 0},
    {"prompt": "One night, " * 20, "seed": 4, "max_tokens": 40, "stop": [".", "moon"], "frequency_penalty": 0.5},
)


class Loaded(NamedTuple):
    """A model and its tokenizer."""

    model: ModelRunner
    tokenizer: Tokenizer


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    found = resolve("storyteller")
    folder: Path = tmp_path_factory.mktemp("cache")
    options = RuntimeOptions(threads=0, precision="fast", kv_memory=64 * 2**20, cache_dir=folder)
    model = load_model(found.files, options, lambda message: None).model
    yield Loaded(model, found.files.load_tokenizer())
    model.close()


def new_engine(loaded: Loaded) -> Engine:
    return Engine(loaded.model, loaded.tokenizer, Sampler(loaded.model.vocab_size))


@pytest.mark.slow
def test_law_2_a_real_job_cut_at_any_step_and_resumed_continues_with_the_same_bits(loaded: Loaded) -> None:
    model, ids = loaded.model, itertools.count()
    served = ServedModel.create("storyteller", loaded.tokenizer, model.vocab_size, model.context_length)
    requests = [check_request({"model": "storyteller", **fields}) for fields in REQUESTS]
    plans = [plan(each, served, number, ids, RequestLimits()) for number, each in enumerate(requests)]
    jobs = [job for planned in plans for job in planned.jobs]
    whole = by_choice(events_of(new_engine(loaded), jobs))
    for cut in (1, 2, 7, 20, 33):
        first = events_of(new_engine(loaded), jobs, max_steps=cut)
        rest = remaining_jobs(jobs, first)
        assert any(job.resume for job in rest)
        assert by_choice(first + events_of(new_engine(loaded), rest)) == whole
