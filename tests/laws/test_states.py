"""Laws 2 to 5 on models whose sequences have a state (Qwen 3.5): alone, among others, from snapshots, with too little
memory, with a grammar whose masks come late, after a failed step, and resumed. No state is lost."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.api.openai.decode import check_request
from onward.completions.limits import RequestLimits
from onward.completions.plan import ServedModel, plan
from onward.constraints.grammar import regex_grammar
from onward.engine import constraints, draft_budget
from onward.engine.events import Event, Failed, Prefilled
from onward.engine.job import Job
from onward.engine.model import Hook, Row
from onward.engine.step import Engine
from onward.engine_load import EngineLoad
from onward.model_files.gguf import GGUFFiles
from onward.runtimes.base import LoadedModel
from onward.runtimes.native.model import NativeModel
from onward.sampling.sampler import Sampler
from tests.engine.harness import JobResult, ToyEngine, events_of, make_job, run, run_alone
from tests.engine.toy_states import engine_with_states
from tests.examples import slow_but
from tests.laws.resuming import by_choice, remaining_jobs
from tests.laws.test_hybrid import BEGINNING, SHAPES, Alone, answers_alone, answers_in_a_crowd, ask, make_backend
from tests.runtimes.native.test_model import load, write
from tests.toy_backend import running

KV_MEMORY = 3_000_000
"""Room for dozens of states."""
TIGHT = {"qwen35": 320_000, "falcon-h1": 600_000, "qwen35moe": 320_000, "qwen3next": 320_000, "nemotron_h": 320_000}
"""By model: room for two or three states, or for the blocks of one sequence and a half."""


@pytest.fixture(scope="module", params=slow_but(["qwen35"], TIGHT))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def path(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("states"), name)


@pytest.fixture(scope="module")
def alone(path: Path) -> Alone:
    return answers_alone(path)


def test_law_2_and_3_the_same_bytes_among_neighbours_and_cached(alone: Alone, path: Path) -> None:
    for shape, answer in answers_in_a_crowd(path):
        assert answer == alone[shape], shape


@pytest.mark.slow
def test_law_3_the_same_bytes_from_a_disk(alone: Alone, path: Path, tmp_path: Path) -> None:
    """Blocks, and the states after them, of which some files are damaged."""

    async def all_shapes() -> tuple[list[tuple[str, list[dict[str, Any]]]], EngineLoad]:
        async with running(make_backend(path, prefix_cache_dir=tmp_path / "cache")) as backend:
            answers = [(shape, await ask(backend, shape)) for shape in [*SHAPES, *SHAPES]]
            return answers, backend.load()["m"]

    read, damaged = [], []
    for _ in range(3):
        answers, load = asyncio.run(all_shapes())
        read.append(load.num_disk_tokens)
        damaged.append(load.num_damaged_files)
        for shape, answer in answers:
            assert answer == alone[shape], shape
        files = sorted((tmp_path / "cache").glob("*.kv"), key=lambda file: file.stat().st_size)
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
        if len(read) == 2:
            for file in files[-1::-2]:
                file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert read[0] == 0 < read[1] >= read[2]
    assert damaged[:2] == [0, 0] and damaged[2] > 0


class Failing(Engine):
    """Fails the steps in `fails_at`."""

    fails_at: tuple[int, ...] = ()
    num_evaluated = 0

    def evaluated(self, rows: list[Row], before_compute: Hook) -> NDArray[np.float32]:
        self.num_evaluated += 1
        logits = NativeModel.evaluate(self.model, rows, before_compute)  # type: ignore[arg-type]
        if self.num_evaluated in self.fails_at:
            raise MemoryError
        return logits


class Bench:
    """Runs jobs on engines of one model, one engine after the other: they use the same memory."""

    def __init__(self, path: Path, kv_memory: int) -> None:
        self.loaded: LoadedModel = load(path, kv_memory=kv_memory)
        self.model = self.loaded.model
        self.tokenizer = GGUFFiles(path).load_tokenizer()
        self.served = ServedModel.create("m", self.tokenizer, self.model.vocab_size, self.model.context_length)
        self._ids, self._numbers = itertools.count(), itertools.count()

    def engine(self, **options: Any) -> Failing:
        sampler, tokenizer = Sampler(self.model.vocab_size), self.tokenizer
        return Failing(self.model, tokenizer, sampler, load_tokenizer=lambda: tokenizer, **options)

    def drafting(self) -> Failing:
        """An engine whose steps all take as long, whatever they compute: drafts always pay."""
        ticks = itertools.count()
        return self.engine(clock=lambda: float(next(ticks)))

    def jobs(self, *requests: dict[str, Any]) -> list[Job]:
        checked = [check_request({"model": "m", "seed": 1, "ignore_eos": True, **each}) for each in requests]
        planned = [plan(each, self.served, next(self._numbers), self._ids, RequestLimits()) for each in checked]
        return [job for each in planned for job in each.jobs]


@pytest.fixture(autouse=True)
def drafts_may_cost_a_lot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_budget, "MAX_LOSS_FRACTION", 1000.0)


@pytest.fixture(scope="module")
def bench(path: Path) -> Iterator[Bench]:
    made = Bench(path, KV_MEMORY)
    yield made
    made.model.close()


def answers(bench: Bench, engine: Engine, **request: Any) -> tuple[int, Any]:
    """The number of tokens of a prompt that came from the cache, and the answer."""
    events = events_of(engine, bench.jobs(request))
    [prefilled] = [event for event in events if isinstance(event, Prefilled)]
    return prefilled.num_cached_tokens, (prefilled.scores, list(by_choice(events).values()))


LONG = BEGINNING * 4
REQUESTS: dict[str, dict[str, Any]] = {
    "again": {"prompt": LONG, "max_tokens": 6, "logprobs": 1},
    "longer": {"prompt": LONG + "and more", "max_tokens": 6, "logprobs": 1},
    "shorter": {"prompt": LONG[:300], "max_tokens": 6, "logprobs": 1},
    "otherwise": {"prompt": LONG[:345] + "xyzzy" * 12, "max_tokens": 6, "logprobs": 1},
    "scored": {"prompt": LONG[:200] + "q" * 40, "echo": True, "logprobs": 2, "max_tokens": 2},
    "scored again": {"prompt": LONG[:200] + "q" * 40, "echo": True, "logprobs": 1, "max_tokens": 2},
    "scored otherwise": {"prompt": LONG[:200] + "q" * 33 + "zz", "echo": True, "logprobs": 2, "max_tokens": 2},
    "several": {"prompt": LONG[:345] + "xyzzy" * 3, "n": 3, "max_tokens": 6, "temperature": 1.1, "logprobs": 0},
}


def test_law_3_a_prompt_continues_from_the_deepest_snapshot(bench: Bench) -> None:
    expected = {
        name: answers(bench, bench.engine(share_prefixes=False), **request)[1] for name, request in REQUESTS.items()
    }
    engine, used = bench.engine(), {}
    events_of(engine, bench.jobs({"prompt": LONG, "max_tokens": 3}))
    for name, request in REQUESTS.items():
        used[name], found = answers(bench, engine, **request)
        assert found == expected[name], name
    whole = (len(bench.jobs({"prompt": LONG})[0].prompt) - 2) // 32 * 32
    assert used["again"] == used["longer"] == whole
    assert used["shorter"] == 256, "the stride's snapshot"
    assert used["otherwise"] == 256, "what both have in common is a snapshot from now on"
    both = (bench.jobs(REQUESTS[name])[0].prompt for name in ("again", "otherwise"))
    common = next(index for index, (one, other) in enumerate(zip(*both, strict=False)) if one != other)
    assert used["several"] == common // 32 * 32 > 256
    assert used["scored again"] == used["scored otherwise"] > 128 >= used["scored"]


def test_a_prompt_is_not_cut_where_none_is_shared(bench: Bench) -> None:
    engine = bench.engine(share_prefixes=False)
    events_of(engine, bench.jobs({"prompt": LONG[:200], "max_tokens": 1}))
    assert engine.counters.num_steps == 1


def test_law_2_the_same_bits_when_memory_is_tight(bench: Bench, name: str, path: Path) -> None:
    """With two states, of which none is left for a snapshot, and blocks for less than two whole sequences."""
    requests = [
        {"prompt": LONG[: 100 + 3 * n], "max_tokens": 300, "n": 1 + n % 2, "temperature": 1.0, "logprobs": 1}
        for n in range(4)
    ]
    expected = list(by_choice(events_of(bench.engine(), bench.jobs(*requests))).values())
    tight = Bench(path, TIGHT[name])
    try:
        engine = tight.engine()
        found = by_choice(events_of(engine, tight.jobs(*requests)))
    finally:
        tight.model.close()
    assert [found[key] for key in sorted(found)] == expected
    assert engine.scheduler.reclaim.num_preemptions > 0


def test_law_2_no_single_token_is_left_before_a_snapshot() -> None:
    """The second choice has no state at first, and computes the prompt again, in a step that has room for all but one
    token before the snapshot."""
    engine = engine_with_states(2)
    decoding, prompt = make_job(max_tokens=5), make_job([7] * 66, max_tokens=1, choices=2)
    results = run(engine, [decoding, prompt])
    assert [results.jobs[job.id].bits for job in (decoding, prompt)] == [
        run_alone(job).bits for job in (decoding, prompt)
    ]


@pytest.mark.parametrize("num_states", slow_but([4], [4, 8, 18]))
@pytest.mark.parametrize("others", slow_but([20], [0, 20, 60]))
def test_law_3_a_common_prefix_is_computed_twice_though_more_prompts_wait_than_there_are_states(
    num_states: int, others: int
) -> None:
    """By the first and by the second one, which leaves a snapshot for all later ones. `others`: prompts without a
    cached prefix that alternate with them."""
    engine = engine_with_states(num_states)
    common = [token % 26 + 97 for token in range(200)]
    alike = [make_job([*common, 30 + number, *common[:30]], max_tokens=24) for number in range(others or 60)]
    apart = [make_job([number + 30, *common], max_tokens=24, client=1) for number in range(others)]
    results = run(engine, [job for pair in zip_longest(alike, apart) for job in pair if job is not None])
    computed_whole = [job for job in alike if not results.jobs[job.id].num_reused_tokens]
    assert len(computed_whole) == 2
    engine.close()


@pytest.mark.parametrize("blocks", slow_but([40], [40, 4096]))
def test_laws_2_and_4_with_drafts_among_others_that_take_turns(blocks: int) -> None:
    """Predictions that are right, wrong, and right in part, of background jobs and several clients: sequences have no
    part in the step after their drafts were accepted, give way, and are cancelled."""
    random = np.random.default_rng(5)
    engine = engine_with_states(7, blocks)
    jobs, expected = [], {}
    for number in range(40):
        prompt = [97 + number % 7] * int(random.integers(3, 60))
        job = make_job(prompt, max_tokens=40, client=number % 3, choices=1 + number % 2, seed=number)
        plain = run_alone(job)
        said = plain.choices[0].tokens
        kept = [token if random.random() > number % 4 / 6 else 100 for token in said]
        jobs.append(replace(job, prediction=tuple(kept), is_background=number % 5 == 0))
        expected[job.id] = plain.bits
    left, cancelled = list(jobs), make_job([97] * 9, max_tokens=400, ignore_end=True, prediction=[97] * 400)

    def arrive(step: int) -> None:
        if step % 6 == 5 and left:
            engine.add(left.pop())
        if step == 31:
            engine.cancel(cancelled.request)

    found: dict[int, JobResult] = {}
    while left:
        found |= run(engine, [cancelled, *(left.pop() for _ in range(min(8, len(left))))], before_step=arrive).jobs
        cancelled = replace(cancelled, id=-len(left), request=-len(left))
    assert {number: found[number].bits for number in expected} == expected
    drafts = engine.counters.drafts
    assert min(drafts.prediction_accepted, drafts.prediction_rejected) > 0
    assert engine.scheduler.reclaim.num_preemptions > 0 or blocks > 40
    engine.close()


@pytest.mark.parametrize("wrong", slow_but([1], [0, 1]))
def test_law_2_accepted_drafts_of_a_job_that_another_one_interrupts(wrong: int) -> None:
    """Its state has not processed them yet when a prompt comes first. At any step."""
    num_tokens = 100 if wrong else 300  # enough for twelve steps
    job = make_job("one two three", max_tokens=num_tokens, ignore_end=True)
    plain = run_alone(job)
    said = tuple(100 if wrong and index % 5 == 4 else token for index, token in enumerate(plain.choices[0].tokens))
    job = replace(job, prediction=said, is_background=True)
    num_replayed = 0
    for cut in range(3, 12):
        engine = engine_with_states(4)

        def interrupt(step: int, engine: ToyEngine = engine, cut: int = cut) -> None:
            if step == cut:
                engine.add(make_job([97] * 40, max_tokens=2))

        found = run(engine, [job], before_step=interrupt).jobs[job.id]
        assert found.bits == plain.bits
        drafts = engine.counters.drafts
        once = len(job.prompt) + num_tokens - 1 + 41 + drafts.prediction_rejected + drafts.lookup_rejected
        num_replayed += engine.model.evaluated_tokens - once
        engine.close()
    assert num_replayed > 0


@pytest.mark.parametrize("num_states", [2, 5, 18])
def test_a_client_gives_way_to_another_until_both_have_half_of_the_states(num_states: int) -> None:
    """Also with the last one: once it is suspended, which takes no state from it, its client holds no more rows."""
    engine = engine_with_states(num_states)
    most = engine.scheduler.rows.max_rows
    for client in range(2):
        for number in range(most):
            engine.add(make_job([97 + number, 98, 99], client=client, max_tokens=1000, ignore_end=True))
        for _ in range(30):
            engine.step()
            engine.check()
    held = [sum(each.job.client == client for each in engine.scheduler.running) for client in range(2)]
    assert held == [most // 2] * 2
    engine.close()


def test_law_4_no_state_is_lost_when_choices_are_cancelled(bench: Bench) -> None:
    engine = bench.engine(max_rows=4)
    for round_ in range(12):
        jobs = bench.jobs(*({"prompt": LONG[:150] + "x" * n, "n": 3, "max_tokens": 9} for n in range(3)))
        events_of(engine, jobs, max_steps=round_)
        for job in jobs[: round_ % 4]:
            engine.cancel(job.request)
        engine.check()
        events_of(engine, [])
    states = engine.cache.states
    assert states is not None and states.num_available == states.max_sequences


def test_law_5_each_choice_continues_from_a_copy(bench: Bench) -> None:
    request: dict[str, Any] = {"prompt": LONG[:100], "temperature": 1.0, "max_tokens": 12, "logprobs": 1}
    together = list(by_choice(events_of(bench.engine(), bench.jobs({**request, "n": 4}))).values())
    assert len({str(each) for each in together}) == 4
    one_by_one = events_of(bench.engine(max_rows=1), bench.jobs({**request, "n": 4}))
    assert list(by_choice(one_by_one).values()) == together


def test_law_2_a_step_that_failed_half_way_is_computed_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [{"prompt": LONG[:n], "max_tokens": 8, "temperature": 1.0, "logprobs": 1} for n in (40, 90, 200)]
    expected = list(by_choice(events_of(bench.engine(), bench.jobs(*requests))).values())
    engine = bench.engine()
    engine.fails_at = (2, 5)
    monkeypatch.setattr(bench.model, "evaluate", engine.evaluated)
    events = events_of(engine, bench.jobs(*requests))
    failed = {event.job for event in events if isinstance(event, Failed)}
    assert 0 < len(failed) < len(requests)
    left = [tokens for (job, _), tokens in by_choice(events).items() if job not in failed]
    assert left and all(each in expected for each in left)


def test_law_2_a_job_cut_at_any_step_and_resumed_continues_with_the_same_bits(bench: Bench) -> None:
    jobs = bench.jobs(*(SHAPES[shape] for shape in ("sampled", "greedy", "choices")))
    whole = by_choice(events_of(bench.engine(), jobs))
    for cut in (1, 2, 4, 9, 20):
        first = events_of(bench.engine(), jobs, max_steps=cut)
        assert by_choice(first + events_of(bench.engine(), remaining_jobs(jobs, first))) == whole


def with_predictions(jobs: list[Job], events: list[Event], wrong: float) -> list[Job]:
    """Jobs that predict what their first choice has become; `wrong`: which share of the tokens are others."""
    random, said = np.random.default_rng(1), by_choice(events)
    predicted = []
    for job in jobs:
        tokens = [sampled.token if random.random() >= wrong else 7 for sampled in said[job.id, 0][0]]
        predicted.append(replace(job, prediction=tuple(tokens)))
    return predicted


@pytest.mark.parametrize("wrong", slow_but([0.2], [0.0, 0.2, 1.0]))
def test_law_2_drafts_that_are_right_or_wrong_change_no_byte(bench: Bench, wrong: float) -> None:
    """Of several sequences together, with too many of them for one step's drafts, and from snapshots."""
    requests = [
        {"prompt": LONG[: 100 + 9 * n], "max_tokens": 60, "n": 1 + n % 3, "temperature": n % 2, "logprobs": 1}
        for n in range(5)
    ]
    jobs = bench.jobs(*requests)
    plain = events_of(bench.engine(speculate=False), jobs)
    engine = bench.drafting()
    predicted = with_predictions(jobs, plain, wrong)
    for _ in range(2):
        assert by_choice(events_of(engine, predicted)) == by_choice(plain)
    drafts = engine.counters.drafts
    assert (drafts.prediction_accepted > 200) == (wrong < 1.0)
    assert drafts.prediction_rejected > 0 or wrong == 0.0


@pytest.mark.slow
def test_law_2_drafts_change_no_byte_when_memory_is_tight(bench: Bench, name: str, path: Path) -> None:
    requests = [
        {"prompt": LONG[: 100 + 3 * n], "max_tokens": 300, "n": 1 + n % 2, "temperature": 1.0, "logprobs": 1}
        for n in range(4)
    ]
    jobs = bench.jobs(*requests)
    plain = events_of(bench.engine(speculate=False), jobs)
    tight = Bench(path, TIGHT[name])
    try:
        engine = tight.drafting()
        found = events_of(engine, with_predictions(jobs, plain, 0.1))
    finally:
        tight.model.close()
    assert by_choice(found) == by_choice(plain)
    assert engine.scheduler.reclaim.num_preemptions > 0 < engine.counters.drafts.prediction_accepted


def test_law_2_a_job_with_drafts_cut_at_any_step_and_resumed_continues_with_the_same_bits(bench: Bench) -> None:
    jobs = bench.jobs(*(SHAPES[shape] for shape in ("sampled", "greedy", "choices")))
    plain = events_of(bench.engine(speculate=False), jobs)
    predicted = with_predictions(jobs, plain, 0.15)
    for cut in (3, 4, 5, 6, 9):
        first = events_of(bench.drafting(), predicted, max_steps=cut)
        assert by_choice(first + events_of(bench.drafting(), remaining_jobs(predicted, first))) == by_choice(plain)


def test_law_2_masks_that_come_late_change_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is computed again, although its state has already processed it."""
    request = {"prompt": LONG[:70], "max_tokens": 12, "ignore_eos": False, "logprobs": 1}
    jobs = [replace(job, grammar=regex_grammar("[a-z ]{6}hello[a-z ]{20}")) for job in bench.jobs(request)]
    expected = by_choice(events_of(bench.engine(speculate=False), jobs))
    for tokens, _ in expected.values():
        assert re.fullmatch(rb"[a-z ]+", b"".join(bench.tokenizer.token_bytes(each.token) for each in tokens))
    monkeypatch.setattr(constraints, "MAX_WAIT_SECONDS", 0.0)
    other, turns = bench.drafting(), itertools.count()
    late = other.constraints.late

    def sometimes_late(step: Any) -> set[int]:
        left = late(step)
        decoding = {each.sequence.id for each in step if not each.is_prefill}
        return left | (decoding if next(turns) % 3 == 1 else set())

    monkeypatch.setattr(other.constraints, "late", sometimes_late)
    assert by_choice(events_of(other, jobs)) == expected
    assert other.counters.drafts.grammar_accepted > 0
