"""What a draft model saves one client, by what it costs and how often it is right: the real engine in virtual time.

`python -m benchmarks.draft_costs` runs in seconds and measures nothing of the machine. Texts are completed one after
the other by an engine that has measured nothing before. For each cost of a drafted token, in steps of the model, and
each share of right tokens, it prints the speed relative to decoding without drafts: of all texts together, and the
least at any token of any text.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from onward.engine.events import Decoded
from onward.engine.job import Job
from onward.engine.model import Hook, Row, nothing
from onward.engine.step import Engine
from onward.model_files.toy import ToyTokenizer
from onward.runtimes.toy.model import ToyModel
from onward.sampling.params import SamplingParams
from onward.sampling.sampler import Sampler
from onward.text.assembler import TextRules

WRONG = 200
"""A token that no script has."""
MAX_TOKENS = 4096
"""Of a sequence."""

IsRight = Callable[[int], bool]
"""Whether what is drafted for this place of a text is right."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of a step beyond the first: `row` for each further row, `first` more for the first of them, and `change`
    if it has another number of rows than the one before. `draft`: of a step of a draft model, and a tenth of it for
    each further row there. `is_known`: the engine has measured the model's steps."""

    row: float
    change: float = 0.0
    draft: float = 0.1
    is_known: bool = True
    first: float = 0.0

    def seconds(self, num_rows: int, *, is_change: bool) -> float:
        added = self.row * (num_rows - 1) + self.first * (num_rows > 1)
        return 1.0 + added + self.change * is_change


class ScriptedModel(ToyModel):
    """A toy whose texts are given: greedily, the tokens of `script` follow a prompt of `prompt_length` tokens. On a
    virtual clock, `now`."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(context_length=MAX_TOKENS)
        self.shape = replace(self.shape, change_fraction=0.5 if machine.change else 0.0)
        self.now, self._before, self._machine = 0.0, 0, machine
        self.prompt_length, self.script = 0, [WRONG]

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        count = sum(len(row.tokens) for row in rows)
        self.now += self._machine.seconds(count, is_change=count != self._before)
        self._before = count
        logits = super().evaluate(rows, before_compute)
        places = [row.start + len(row.tokens) - self.prompt_length for row in rows if row.outputs]
        for index, place in enumerate(places):
            if 0 <= place < len(self.script):
                logits[index, self.script[place]] += 1000.0
        return logits


class ScriptedDraft(ToyModel):
    """Drafts for a scripted model what `is_right` says, on its clock. Knows the place from the engine."""

    def __init__(self, model: ScriptedModel, seconds: float) -> None:
        super().__init__(context_length=MAX_TOKENS)
        self.engine: Engine | None = None
        self.seconds = seconds
        """Of a step of one token."""
        self.is_right: IsRight = never
        self._model, self._begin, self._num_drafted = model, 0, 0

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        self._model.now += self.seconds * (1.0 + 0.1 * (sum(len(row.tokens) for row in rows) - 1))
        logits = super().evaluate(rows, before_compute)
        if self.engine is None or not len(logits):
            return logits
        [sequence] = self.engine.scheduler.running
        self._num_drafted = self._num_drafted + 1 if sequence.num_generated == self._begin else 0
        self._begin = sequence.num_generated
        place = self._begin + self._num_drafted
        if place < len(self._model.script):
            logits[0, self._model.script[place] if self.is_right(place) else WRONG] += 1000.0
        return logits


class ScriptedPredictor(ScriptedDraft):
    """The same as a layer of the model. Implements engine.model.Predictor."""

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        self._end = rows[-1].start + len(rows[-1].tokens)
        return super().evaluate([replace(row, blocks=range(self.blocks)) for row in rows], before_compute)

    def extend(self, token: int) -> NDArray[np.float32]:
        return self.evaluate([Row(0, (token,), self._end, (), 1)])


class Completions:
    """An engine in virtual time that completes given texts, one after the other."""

    def __init__(self, machine: Machine, *, draft: type[ScriptedDraft] | None = ScriptedDraft) -> None:
        self.machine = machine
        self.model = ScriptedModel(machine)
        self.draft = None if draft is None else draft(self.model, machine.draft)
        sampler = Sampler(self.model.vocab_size, 1)
        self.engine = Engine(
            self.model, ToyTokenizer(), sampler, draft_model=self.draft, share_prefixes=False,
            clock=lambda: self.model.now,
        )  # fmt: skip
        if self.draft is not None:
            self.draft.engine = self.engine
        if machine.is_known:
            learn(self.engine, machine)
        self._number = 0

    def complete(
        self, prompt: Sequence[int], script: Sequence[int], is_right: IsRight, after_step: Callable[[], None] = nothing
    ) -> list[float]:
        """Return when each token of a text comes, in seconds since its prompt was sent."""
        engine, model, began = self.engine, self.model, self.model.now
        model.prompt_length, model.script = len(prompt), list(script)
        if self.draft is not None:
            self.draft.is_right = is_right
        self._number += 1
        engine.add(
            Job(
                id=self._number, request=self._number, prompt=tuple(prompt), num_choices=1, max_tokens=len(script),
                sampling=SamplingParams(temperature=0.0), rules=TextRules(), end_tokens=frozenset(),
            )
        )  # fmt: skip
        times: list[float] = []
        while not engine.idle:
            decoded = [event for event in engine.step() if isinstance(event, Decoded)]
            times += [model.now - began] * sum(len(event.tokens) for event in decoded)
            after_step()
        return times


def learn(engine: Engine, machine: Machine) -> None:
    """Let an engine measure what steps cost."""
    for rows in [*[1, 2, 4, 8, 16, 32] * 10, 1]:
        for repeated in range(4):
            engine._cost.observe(0, rows, machine.seconds(rows, is_change=not repeated))


def plain_times(times: Sequence[float], machine: Machine) -> list[float]:
    """Return when the tokens would have come without drafts: in steps of one row after that with the prompt."""
    return [times[0] + (machine.change if place else 0.0) + place for place in range(len(times))]


def random_text(length: int, seed: int = 1) -> list[int]:
    """Return a text that hardly repeats itself."""
    rng = random.Random(seed)
    return [rng.randrange(WRONG) for _ in range(length)]


def never(place: int) -> bool:
    return False


def right_in(fraction: float, length: int, seed: int = 1) -> IsRight:
    """Return drafts that are right in this share of places, at random."""
    rng = random.Random(seed)
    return [rng.random() < fraction for _ in range(length)].__getitem__


@dataclass(frozen=True, slots=True)
class Load:
    """Texts of so many tokens after prompts of so many. `is_predictor`: a layer of the model drafts."""

    texts: int
    prompt: int
    out: int
    row: float
    is_predictor: bool = False


def speeds(load: Load, cost: float, fraction: float) -> tuple[float, float]:
    """Return the speed of all texts relative to decoding without drafts, and the least at any token of any text."""
    kind = ScriptedPredictor if load.is_predictor else ScriptedDraft
    completions = Completions(Machine(load.row, draft=cost, is_known=False), draft=kind)
    plain_seconds = seconds = 0.0
    least = 1.0
    for number in range(load.texts):
        seed = 2 * number
        is_right = right_in(fraction, load.out, seed)
        times = completions.complete(random_text(load.prompt, seed + 1), random_text(load.out, seed), is_right)
        plain = plain_times(times, completions.machine)
        least = min(least, *(one / other for one, other in zip(plain, times, strict=True)))
        plain_seconds, seconds = plain_seconds + plain[-1], seconds + times[-1]
    completions.engine.close()
    return plain_seconds / seconds, least


def tables(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the figures of each number of tokens, which are printed."""
    for out in options.out:
        load = Load(max(1, options.tokens // out), options.prompt, out, options.row, options.mtp)
        print(f"\n{load.texts} texts of {out} tokens after prompts of {load.prompt}")
        print("cost \\ right" + "".join(f"{fraction:>15.0%}" for fraction in options.right))
        for cost in options.costs:
            found = [speeds(load, cost, fraction) for fraction in options.right]
            cells = "".join(f"{f'{speed:.3f} ({least:.3f})':>15}" for speed, least in found)
            print(f"{cost:12.2f}{cells}", flush=True)
            yield {"out": out, "texts": load.texts, "cost": cost, "right": options.right, "speeds": found}


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("draft_costs", __doc__)
    costs, right = [0.01, 0.1, 0.3, 0.7, 1.0, 1.5, 3.0, 5.0], [0.0, 0.3, 0.6, 0.8, 1.0]
    parser.add_argument("--costs", type=float, nargs="+", default=costs, help="steps' time of a drafted token")
    parser.add_argument("--right", type=float, nargs="+", default=right, help="shares of right tokens")
    parser.add_argument("--out", type=int, nargs="+", default=[16, 64, 256, 1024], help="tokens of each text")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt (default 64)")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of all texts (default 2048)")
    parser.add_argument("--row", type=float, default=0.05, help="a further row, in steps' time (default 0.05)")
    parser.add_argument("--mtp", action="store_true", help="a layer of the model drafts, and needs the whole prompt")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    report({"tables": list(tables(options))})


if __name__ == "__main__":
    measure.run(arguments(), main)
