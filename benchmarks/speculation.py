"""Gain and cost of speculation: the engine with and without it, in alternating rounds of one run.

Copy-editing with `prediction`, code edits found by prompt lookup, text that cannot be predicted, and many edits at
once. The texts are forced (benchmarks/scripted.py), everything else is real. Fails if the two arms differ in a token.
`python -m benchmarks.speculation --model storyteller --rounds 5`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import measure
from benchmarks.measure import BenchmarkError
from benchmarks.models import load
from benchmarks.scripted import ScriptedModel
from benchmarks.speculation_cases import KINDS, Case, Task, Workloads
from onward.engine.events import Decoded
from onward.engine.job import Job
from onward.engine.model import ModelRunner, Vocabulary
from onward.engine.step import Engine
from onward.sampling.params import SamplingParams
from onward.sampling.sampler import Sampler
from onward.text.assembler import TextRules

ON, OFF = "on", "off"
ARMS = (ON, OFF)
MAX_TURNS = 20
"""Turns of each arm in a round, at most."""
MIN_TURN_STEPS = 16
"""Steps of one turn, at least: the first ones find the other arm's data in the processor's caches."""


@dataclass(slots=True)
class Run:
    """One arm's run of a case: wall-clock `seconds` and `cpu_seconds` of the process.

    `decode_seconds` counts steps without prefill only, `decode_tokens` the tokens they generated. `forcing_seconds` is
    the part of `seconds` that forcing the text took.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    decode_seconds: float = 0.0
    decode_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    forcing_seconds: float = 0.0
    generated: dict[int, list[int]] = field(default_factory=dict)
    """The tokens of each task, by index."""
    drafts: Counter[str] = field(default_factory=Counter)
    turn_rates: list[float] = field(default_factory=list)
    """Tokens per second of each turn."""


class Arm:
    """A model and an engine, kept from case to case as in a server, so that the engine has measured what steps cost.

    Prefixes are not shared, because every round has the same prompts. `clock`: what the engine measures steps with,
    in seconds.
    """

    def __init__(
        self,
        model: ModelRunner,
        vocabulary: Vocabulary,
        *,
        speculate: bool,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = ScriptedModel(model)
        self._engine = Engine(
            self._model, vocabulary, Sampler(model.vocab_size), share_prefixes=False, speculate=speculate, clock=clock
        )
        self._ids = itertools.count()
        self._waiting: Iterator[tuple[int, Task]] = iter(())
        self._task_indices: dict[int, int] = {}
        self.run = Run()

    @property
    def idle(self) -> bool:
        return self._engine.idle

    def begin(self, case: Case) -> None:
        """Start a closed loop of `case.clients` tasks at a time."""
        self.run = Run()
        self._model.clear_scripts()
        self._task_indices.clear()
        self._waiting = iter(enumerate(case.tasks))
        self._submit(case.clients)

    def advance(self, tokens: int) -> None:
        """Run steps until so many tokens have been generated since `begin`, or all."""
        run, counters = self.run, self._engine.counters
        forced, steps, drafts = self._model.seconds, counters.num_steps, msgspec.structs.asdict(counters.drafts)
        tokens_before = run.tokens
        cpu_begin, begin = time.process_time(), time.perf_counter()
        while not self.idle and run.tokens < tokens:
            self._submit(self._step())
        seconds = time.perf_counter() - begin
        run.seconds += seconds
        run.turn_rates.append((run.tokens - tokens_before) / seconds)
        run.cpu_seconds += time.process_time() - cpu_begin
        run.forcing_seconds += self._model.seconds - forced
        run.steps += counters.num_steps - steps
        now = msgspec.structs.asdict(counters.drafts)
        run.drafts.update({key.replace("_", " "): count - drafts[key] for key, count in now.items()})

    def _submit(self, count: int) -> None:
        for index, task in itertools.islice(self._waiting, count):
            number = next(self._ids)
            job = Job(
                id=number,
                request=number,
                prompt=task.prompt,
                num_choices=1,
                max_tokens=task.tokens,
                sampling=SamplingParams(temperature=0.8, top_p=0.95, seed=index),
                rules=TextRules(),
                end_tokens=frozenset(),
                prediction=task.prediction,
            )
            self._task_indices[number] = index
            self._model.add(self._engine, job, task.script)

    def _step(self) -> int:
        """Do one step; return how many jobs ended."""
        run, counters = self.run, self._engine.counters
        prefilled, decoded = counters.num_prefill_tokens, counters.num_decode_tokens
        begin = time.perf_counter()
        events = self._engine.step()
        if counters.num_prefill_tokens == prefilled:
            run.decode_seconds += time.perf_counter() - begin
            run.decode_tokens += counters.num_decode_tokens - decoded
        ended = 0
        for event in events:
            if isinstance(event, Decoded):
                run.generated.setdefault(self._task_indices[event.job], []).extend(
                    sampled.token for sampled in event.tokens
                )
                run.tokens += len(event.tokens)
                ended += event.finish_reason is not None
        return ended


def run_case(case: Case, arms: dict[str, Arm]) -> dict[str, Run]:
    """Run the same tasks on both arms, interleaved every twentieth of the tokens, so that disturbances affect both."""
    for arm in arms.values():
        arm.begin(case)
    total = sum(task.tokens for task in case.tasks)
    turns = max(2, min(MAX_TURNS, total // case.clients // MIN_TURN_STEPS))
    for turn in range(1, turns + 1):
        for name in ARMS if turn % 2 else ARMS[::-1]:
            arms[name].advance(total * turn // turns)
    assert all(arm.idle for arm in arms.values()), "an arm did not generate all its tokens"
    return {name: arm.run for name, arm in arms.items()}


def compare(case: Case, run: Callable[[Case], dict[str, Run]], rounds: int) -> dict[str, Any]:
    """Run a case for so many rounds, after a warm-up round; return its figures.

    Raises BenchmarkError if the arms' tokens differ from each other or from the script.
    """
    done = []
    for _ in range(rounds + 1):
        done.append(run(case))
        _check(case, done[-1])
    return _figures(case, done[1:])


def _check(case: Case, done: dict[str, Run]) -> None:
    if done[ON].generated != done[OFF].generated:
        raise BenchmarkError(f"{case.name}: speculation changed tokens")
    for index, task in enumerate(case.tasks):
        if task.script and done[OFF].generated[index] != list(task.script):
            raise BenchmarkError(f"{case.name}: the model did not follow its script")


def _figures(case: Case, rounds: list[dict[str, Run]]) -> dict[str, Any]:
    def ratio(rate: Callable[[Run], float]) -> dict[str, float]:
        return measure.median_of([rate(each[ON]) / rate(each[OFF]) for each in rounds])

    def each_arm(value: Callable[[Run], float]) -> dict[str, dict[str, float]]:
        return {arm: measure.median_of([value(each[arm]) for each in rounds]) for arm in ARMS}

    return {
        "kind": case.kind,
        "name": case.name,
        "clients": case.clients,
        "tokens": rounds[0][OFF].tokens,
        "tok_s": each_arm(lambda run: run.tokens / run.seconds),
        "ratio": ratio(lambda run: run.tokens / run.seconds),
        "decode_ratio": ratio(lambda run: run.decode_tokens / run.decode_seconds),
        "turn_ratio": measure.median_of([on / off for each in rounds for on, off in _turn_rates(each)]),
        "cpu_ratio": ratio(lambda run: run.tokens / run.cpu_seconds),
        "steps": {arm: statistics.median(each[arm].steps for each in rounds) for arm in ARMS},
        "drafts": {key: statistics.median(each[ON].drafts[key] for each in rounds) for key in rounds[0][ON].drafts},
        "forcing_fraction": max(each[arm].forcing_seconds / each[arm].seconds for each in rounds for arm in ARMS),
    }


def _turn_rates(round_: dict[str, Run]) -> list[tuple[float, float]]:
    """Return pairs of both arms' turn rates, where both generated tokens."""
    pairs = zip(round_[ON].turn_rates, round_[OFF].turn_rates, strict=True)
    return [(on, off) for on, off in pairs if on and off]


def medians(cases: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return for each kind of case the median of its cases' ratios, and the least."""
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        ratios = {
            key: [case[key]["median"] for case in cases if case["kind"] == kind]
            for key in ("ratio", "decode_ratio", "turn_ratio", "cpu_ratio")
        }
        if ratios["ratio"]:
            found[kind] = {key: statistics.median(values) for key, values in ratios.items()}
            found[kind]["least"] = min(ratios["ratio"])
    return found


def line(case: dict[str, Any]) -> str:
    """Return the figures of a case for the terminal."""
    ratio, steps, drafts = case["ratio"], case["steps"], case["drafts"]
    outcomes = {
        outcome: sum(count for key, count in drafts.items() if key.endswith(outcome))
        for outcome in ("accepted", "rejected")
    }
    return (
        f"{case['kind']:14}{case['name']:26}{case['clients']:>3} clients {case['tok_s'][OFF]['median']:9.1f} tok/s "
        f"x {ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['greatest']:.3f}), "
        f"turns x {case['turn_ratio']['median']:.3f}, "
        f"decode x {case['decode_ratio']['median']:.3f}, per CPU second x {case['cpu_ratio']['median']:.3f}, "
        f"steps {steps[OFF]:.0f} -> {steps[ON]:.0f}, drafts {outcomes['accepted']:.0f} of "
        f"{outcomes['accepted'] + outcomes['rejected']:.0f}, forcing {case['forcing_fraction']:.2%}"
    )


def measure_model(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of each case of one model whose sequences fit into its context; say which do not."""
    models = {arm: load(name) for arm in ARMS}
    arms = {
        arm: Arm(model, folder.files.load_tokenizer(), speculate=arm == ON) for arm, (model, folder) in models.items()
    }
    context = models[ON][0].context_length
    try:
        for case in Workloads(models[ON][0].vocab_size, options.out).cases(options.kinds):
            if case.longest > context:
                print(f"{case.kind:14}{case.name:26}left out: {case.longest:,} tokens, and the context has {context:,}")
                continue
            yield compare(case, lambda case: run_case(case, arms), options.rounds)
    finally:
        for model, _ in models.values():
            model.close()


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("speculation", __doc__)
    parser.add_argument("--model", nargs="+", default=["storyteller"], help="built-in names or folders")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="which cases (default: all)")
    parser.add_argument(
        "--out", type=int, default=256, help="tokens per completion of unpredictable text (default 256)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds (default 5)")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures: dict[str, Any] = {}
    for name in options.model:
        print(name)
        cases: list[dict[str, Any]] = []
        for case in measure_model(name, options):
            print(line(case), flush=True)
            cases.append(case)
            figures[Path(name).name] = {"cases": cases, "medians": medians(cases)}
            report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
