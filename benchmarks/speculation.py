"""What guessing ahead gains and costs: the engine with and without speculation, in alternating rounds of one run.

Copy-editing with `prediction`, code edits found by prompt lookup, text that nothing foretells, and many of them at
once. The texts are forced (benchmarks/scripted.py), everything else is real. Fails when the two arms differ in a token.
`python -m benchmarks.speculation --model storyteller --rounds 5`.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.copying import KINDS, Case, Task, Workloads
from benchmarks.models import load
from benchmarks.scripted import ScriptedModel
from onward.engine.events import Piece
from onward.engine.job import Job
from onward.engine.model import Model, Vocabulary
from onward.engine.step import Engine
from onward.runtimes.tokenizer import HuggingFaceTokenizer
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules

ON, OFF = "on", "off"
ARMS = (ON, OFF)
TURNS = 20
"""How often each arm has its turn in a race, at most."""
TURN_STEPS = 16
"""Steps of one turn, at least: the first ones find the other arm's data in the caches."""


@dataclass(slots=True)
class Run:
    """What one arm did with a case's tasks (seconds of perf_counter and of the process's processors).

    `writing` counts only steps that read no prompt, `written` the tokens that came from them. `forcing` is the share
    of `seconds` that the script took.
    """

    seconds: float = 0.0
    processor: float = 0.0
    writing: float = 0.0
    written: int = 0
    tokens: int = 0
    steps: int = 0
    forcing: float = 0.0
    said: dict[int, list[int]] = field(default_factory=dict)
    """The tokens of each task, by its place among the tasks."""
    drafts: Counter[str] = field(default_factory=Counter)
    turns: list[float] = field(default_factory=list)
    """Tokens a second of each of its turns."""


class Arm:
    """A model and an engine that go on from case to case, as a server does, so that the engine has learnt what steps
    cost. Prefixes are not shared: every round asks the same."""

    def __init__(self, model: Model, vocabulary: Vocabulary, *, speculate: bool) -> None:
        self._model = ScriptedModel(model)
        self._engine = Engine(self._model, vocabulary, share_prefixes=False, speculate=speculate)
        self._ids = itertools.count()
        self._waiting: Iterator[tuple[int, Task]] = iter(())
        self._places: dict[int, int] = {}
        self.run = Run()

    @property
    def idle(self) -> bool:
        return self._engine.idle

    def begin(self, case: Case) -> None:
        """Start a closed loop: so many tasks at a time, until all are done."""
        self.run = Run()
        self._model.forget()
        self._places.clear()
        self._waiting = iter(enumerate(case.tasks))
        self._submit(case.clients)

    def go(self, tokens: int) -> None:
        """Step on until so many tokens have been said since `begin`, or all have been."""
        run, counters = self.run, self._engine.counters
        forced, steps, drafts = self._model.seconds, counters.steps, dict(counters.drafts)
        said = run.tokens
        processor, begin = time.process_time(), time.perf_counter()
        while not self.idle and run.tokens < tokens:
            self._submit(self._step())
        seconds = time.perf_counter() - begin
        run.seconds += seconds
        run.turns.append((run.tokens - said) / seconds)
        run.processor += time.process_time() - processor
        run.forcing += self._model.seconds - forced
        run.steps += counters.steps - steps
        run.drafts.update({" ".join(key): count - drafts[key] for key, count in counters.drafts.items()})

    def _submit(self, count: int) -> None:
        for place, task in itertools.islice(self._waiting, count):
            number = next(self._ids)
            job = Job(
                id=number,
                request=number,
                prompt=task.prompt,
                choices=1,
                max_tokens=task.tokens,
                sampling=SamplingParams(temperature=0.8, top_p=0.95, seed=place),
                rules=TextRules(),
                end_tokens=frozenset(),
                prediction=task.prediction,
            )
            self._places[number] = place
            self._model.add(self._engine, job, task.script)

    def _step(self) -> int:
        """One step; how many jobs it ended."""
        run, counters = self.run, self._engine.counters
        read, written = counters.prefill_tokens, counters.decode_tokens
        begin = time.perf_counter()
        events = self._engine.step()
        if counters.prefill_tokens == read:
            run.writing += time.perf_counter() - begin
            run.written += counters.decode_tokens - written
        ended = 0
        for event in events:
            if isinstance(event, Piece):
                run.said.setdefault(self._places[event.job], []).extend(record.token for record in event.records)
                run.tokens += len(event.records)
                ended += event.ending is not None
        return ended


def race(case: Case, arms: dict[str, Arm]) -> dict[str, Run]:
    """Both arms do the same tasks, taking turns at every twentieth of the tokens: what disturbs one disturbs both."""
    for arm in arms.values():
        arm.begin(case)
    total = sum(task.tokens for task in case.tasks)
    turns = max(2, min(TURNS, total // case.clients // TURN_STEPS))
    for turn in range(1, turns + 1):
        for name in ARMS if turn % 2 else ARMS[::-1]:
            arms[name].go(total * turn // turns)
    assert all(arm.idle for arm in arms.values()), "an arm has not said all that it was to say"
    return {name: arm.run for name, arm in arms.items()}


def compare(case: Case, run: Callable[[Case], dict[str, Run]], rounds: int) -> dict[str, Any]:
    """So many races, and one before them that warms up and is not kept.

    Raises RuntimeError when an arm says other tokens than the other, or than the script.
    """
    kept = []
    for _ in range(rounds + 1):
        kept.append(run(case))
        _check(case, kept[-1])
    return _figures(case, kept[1:])


def _check(case: Case, done: dict[str, Run]) -> None:
    if done[ON].said != done[OFF].said:
        raise RuntimeError(f"{case.name}: speculation changed tokens")
    for place, task in enumerate(case.tasks):
        if task.script and done[OFF].said[place] != list(task.script):
            raise RuntimeError(f"{case.name}: the model did not follow its script")


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
        "writing_ratio": ratio(lambda run: run.written / run.writing),
        "turn_ratio": measure.median_of([mine / its for each in rounds for mine, its in _turns(each)]),
        "processor_ratio": ratio(lambda run: run.tokens / run.processor),
        "steps": {arm: statistics.median(each[arm].steps for each in rounds) for arm in ARMS},
        "drafts": {key: statistics.median(each[ON].drafts[key] for each in rounds) for key in rounds[0][ON].drafts},
        "forcing": max(each[arm].forcing / each[arm].seconds for each in rounds for arm in ARMS),
    }


def _turns(round_: dict[str, Run]) -> list[tuple[float, float]]:
    """Rates of both arms' turns, where both had something to say."""
    pairs = zip(round_[ON].turns, round_[OFF].turns, strict=True)
    return [(mine, its) for mine, its in pairs if mine and its]


def medians(cases: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """For each kind of case the median of its cases' ratios, and the least."""
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        ratios = {
            key: [case[key]["median"] for case in cases if case["kind"] == kind]
            for key in ("ratio", "writing_ratio", "turn_ratio", "processor_ratio")
        }
        if ratios["ratio"]:
            found[kind] = {key: statistics.median(values) for key, values in ratios.items()}
            found[kind]["least"] = min(ratios["ratio"])
    return found


def line(case: dict[str, Any]) -> str:
    """A case's figures for the terminal."""
    ratio, steps, drafts = case["ratio"], case["steps"], case["drafts"]
    outcomes = {
        outcome: sum(count for key, count in drafts.items() if key.endswith(outcome))
        for outcome in ("accepted", "rejected")
    }
    return (
        f"{case['kind']:14}{case['name']:26}{case['clients']:>3} clients {case['tok_s'][OFF]['median']:9.1f} tok/s "
        f"x {ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['greatest']:.3f}), "
        f"turns x {case['turn_ratio']['median']:.3f}, "
        f"writing x {case['writing_ratio']['median']:.3f}, processor x {case['processor_ratio']['median']:.3f}, "
        f"steps {steps[OFF]:.0f} -> {steps[ON]:.0f}, drafts {outcomes['accepted']:.0f} of "
        f"{outcomes['accepted'] + outcomes['rejected']:.0f}, forcing {case['forcing']:.2%}"
    )


def measured(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The cases of one model, one after another."""
    models = {arm: load(name) for arm in ARMS}
    arms = {
        arm: Arm(model, HuggingFaceTokenizer(folder.path), speculate=arm == ON)
        for arm, (model, folder) in models.items()
    }
    for case in Workloads(models[ON][0].vocab_size, options.out).cases(options.kinds):
        yield compare(case, lambda case: race(case, arms), options.rounds)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculation", description=__doc__)
    parser.add_argument("--model", nargs="+", default=["storyteller"], help="built-in names or folders")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="which cases (default: all)")
    parser.add_argument("--out", type=int, default=256, help="tokens a completion of text that nothing foretells")
    parser.add_argument("--rounds", type=int, default=5, help="races that count (default 5)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    return parser


def main() -> int:
    options = arguments().parse_args()
    at_start = measure.begin()
    figures: dict[str, Any] = {}
    for name in options.model:
        print(name)
        cases: list[dict[str, Any]] = []
        for case in measured(name, options):
            print(line(case), flush=True)
            cases.append(case)
            figures[Path(name).name] = {"cases": cases, "medians": medians(cases)}
            measure.write_report(options.json, "speculation", figures, at_start)
    return 0


if __name__ == "__main__":
    sys.exit(main())
