"""Whatever is drafted, a text takes at most 1/0.97 of its time without drafts, at each of its tokens; and where drafts
are right, they start soon. In virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.engine.draft_budget import MAX_LOSS_FRACTION, MAX_SAVED_STEPS, DraftBudget
from onward.engine.drafter import MAX_DRAFT_TOKENS, Drafter, Proposal
from onward.engine.events import Decoded
from onward.engine.model import Hook, Row, nothing
from onward.engine.pacing import StepCost
from onward.runtimes.toy.model import ToyModel
from tests.examples import examples

from .harness import ToyEngine, make_engine, make_job

LEAST_SPEED = 0.97
WRONG = 200
"""A token that no script has."""

IsRight = Callable[[int], bool]
"""Whether what is drafted for this place of a text is right."""
Source = Literal["prediction", "lookup", "grammar", "model"]


@dataclass(frozen=True)
class Machine:
    """Seconds of a step beyond the first: `row` for each further row, `first` more for the first of them, and `change`
    if it has another number of rows than the one before. `draft`: of a step of a draft model, and a tenth of it for
    each further row there. `is_known`: the engine has measured them."""

    row: float
    change: float = 0.0
    draft: float = 0.1
    is_known: bool = True
    first: float = 0.0

    def seconds(self, num_rows: int, *, is_change: bool) -> float:
        added = self.row * (num_rows - 1) + self.first * (num_rows > 1)
        return 1.0 + added + self.change * is_change


class Scripted(ToyModel):
    """A toy whose text is given: greedily, the tokens of `script` follow a prompt of so many tokens. On a virtual
    clock."""

    def __init__(self, prompt_length: int, script: Sequence[int], machine: Machine) -> None:
        super().__init__(context_length=4096)
        self.shape = replace(self.shape, change_fraction=0.5 if machine.change else 0.0)
        self.now, self._before = 0.0, 0
        self._first, self._script, self._machine = prompt_length, script, machine

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        count, machine = sum(len(row.tokens) for row in rows), self._machine
        self.now += machine.seconds(count, is_change=count != self._before)
        self._before = count
        logits = super().evaluate(rows, before_compute)
        places = [row.start + len(row.tokens) - self._first for row in rows if row.outputs]
        for index, place in enumerate(places):
            if place < len(self._script):
                logits[index, self._script[place]] += 1000.0
        return logits


class Claims(Drafter):
    """Is nearly certain of what it drafts, and is right where it is told."""

    def __init__(self, tokens: list[int], prompt_length: int, script: Sequence[int], is_right: IsRight) -> None:
        super().__init__(tokens, prompt_length, ())
        self._text, self._first, self._script, self._is_right = tokens, prompt_length, script, is_right
        self.source: Source = "prediction"

    def follow(self) -> bool:
        return True

    def propose(self, count: int, min_probability: float) -> Proposal | None:
        begin = len(self._text) - self._first
        places = range(begin, min(begin + min(count, MAX_DRAFT_TOKENS), len(self._script)))
        tokens = [self._script[place] if self._is_right(place) else WRONG for place in places]
        return Proposal(tokens, [0.999 - index / 1e6 for index in range(len(tokens))], self.source) if tokens else None


class ClaimingModel(ToyModel):
    """The same as a draft model. Knows the text from the engine that it drafts for."""

    engine: ToyEngine

    def __init__(self, script: Sequence[int], is_right: IsRight, target: Scripted, machine: Machine) -> None:
        super().__init__(context_length=4096)
        self._script, self._is_right, self._target, self._machine = script, is_right, target, machine
        self._begin = self._num_drafted = 0

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        self._target.now += self._machine.draft * (1.0 + 0.1 * (sum(len(row.tokens) for row in rows) - 1))
        [sequence] = self.engine.scheduler.running
        begin = sequence.num_generated
        self._num_drafted = self._num_drafted + 1 if begin == self._begin else 0
        self._begin = begin
        logits = super().evaluate(rows, before_compute)
        place = begin + self._num_drafted
        if len(logits) and place < len(self._script):
            logits[0, self._script[place] if self._is_right(place) else WRONG] += 1000.0
        return logits


def times_of(
    machine: Machine,
    source: Source,
    prompt: Sequence[int],
    script: Sequence[int],
    is_right: IsRight,
    *,
    before: Sequence[tuple[int, float]] = (),
) -> tuple[list[float], ToyEngine]:
    """When each token of a text came, and the engine after it. `before`: prompts, of so many tokens and seconds, that
    an engine has computed before whose costs are known."""
    target = Scripted(len(prompt), script, machine)
    draft = ClaimingModel(script, is_right, target, machine) if source == "model" else None
    engine = make_engine(draft_model=draft, clock=lambda: target.now, model=target)
    if draft is not None:
        draft.engine = engine
    if machine.is_known:
        learn(engine._cost, machine)
        for num_tokens, seconds in before:
            engine._cost.observe(num_tokens, 0, seconds)
    engine.add(make_job(prompt, max_tokens=len(script), ignore_end=True, temperature=0.0))
    times: list[float] = []
    while not engine.idle:
        for event in engine.step():
            if isinstance(event, Decoded):
                times += [target.now] * len(event.tokens)
        for sequence in engine.scheduler.running:
            if source != "model" and not isinstance(sequence.drafter, Claims):
                sequence.drafter = Claims(sequence.tokens, len(prompt), script, is_right)
                sequence.drafter.source = source
    assert len(times) == len(script)
    return times, engine


def learn(cost: StepCost, machine: Machine) -> None:
    """Let an engine measure what steps cost."""
    for rows in [*[1, 2, 4, 8, 16, 32] * 10, 1]:
        for repeated in range(4):
            cost.observe(0, rows, machine.seconds(rows, is_change=not repeated))


def plain_times(times: Sequence[float], machine: Machine) -> list[float]:
    """When they would have come without drafts: in steps of one row after that with the prompt."""
    return [times[0] + (machine.change if place else 0.0) + place for place in range(len(times))]


def random_text(length: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(97, 123) for _ in range(length)]


def require_bound(times: Sequence[float], machine: Machine) -> None:
    for place, (time, plain) in enumerate(zip(times, plain_times(times, machine), strict=True)):
        assert plain >= LEAST_SPEED * time, f"{plain / time:.4f} times as fast after {place + 1} tokens"


# --- never slower ------------------------------------------------------------------------------------------------


def is_right_of(kind: str, length: int, seed: int) -> IsRight:
    """Patterns of right and wrong drafts."""
    rng = random.Random(seed)
    end, period = rng.randrange(length), rng.randrange(1, 40)
    random_places = [rng.random() < 0.5 + seed % 5 / 10 for _ in range(length + MAX_DRAFT_TOKENS)]
    return {
        "never": lambda place: False,
        "until a place": lambda place: place < end,
        "from a place on": lambda place: place >= end,
        "alternating": lambda place: bool(place // period % 2),
        "all but one of some": lambda place: place % (period + 1) != 0,
        "at random": lambda place: random_places[place],
    }[kind]


KINDS = ("never", "until a place", "from a place on", "alternating", "all but one of some", "at random")
SOURCES: tuple[Source, ...] = ("prediction", "lookup", "grammar", "model")
MACHINES = (
    *(Machine(row, draft=draft) for row, draft in ((0.01, 0.02), (0.1, 0.1), (0.25, 0.3), (1.0, 1.0))),
    Machine(0.05, 0.3, 0.5),
    *(Machine(row, draft=draft, is_known=False) for row, draft in ((0.01, 0.02), (0.1, 0.5), (0.25, 0.1))),
    Machine(0.05, 0.3, is_known=False),
    *(Machine(0.02, first=0.3, is_known=is_known) for is_known in (True, False)),
)


@settings(max_examples=examples(200))
@given(
    machine=st.sampled_from(MACHINES),
    source=st.sampled_from(SOURCES),
    kind=st.sampled_from(KINDS),
    prompt_length=st.sampled_from([1, 20, 300]),
    length=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
def test_at_no_token_of_any_text_drafts_have_cost_more_than_a_33rd_of_its_time(
    machine: Machine, source: Source, kind: str, prompt_length: int, length: int, seed: int
) -> None:
    script = random_text(length, seed)
    times, _ = times_of(machine, source, random_text(prompt_length, seed), script, is_right_of(kind, length, seed))
    require_bound(times, machine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_holds_for_long_texts(machine: Machine, source: Source, kind: str) -> None:
    times, _ = times_of(machine, source, random_text(20), random_text(2000), is_right_of(kind, 2000, 3))
    require_bound(times, machine)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("length", [20, 300])
def test_a_prompt_counts_as_long_as_it_takes_whatever_others_have_taken(source: Source, length: int) -> None:
    """Attention makes the tokens of long prompts take longer."""
    machine = Machine(0.01, draft=0.01)
    script = random_text(60)
    times, _ = times_of(machine, source, random_text(length), script, lambda place: False, before=[(512, 52.0)] * 6)
    require_bound(times, machine)


@pytest.mark.parametrize("length", [45, 100])
def test_what_a_step_takes_without_drafts_is_not_guessed_from_those_with_some(length: int) -> None:
    """After a long prompt, drafts begin with the second token: no two steps of one row follow each other."""
    machine, seed = Machine(0.25, draft=0.1, is_known=False), 1000
    is_right = is_right_of("at random", length, seed)
    times, _ = times_of(machine, "prediction", random_text(300, seed), random_text(length, seed), is_right)
    require_bound(times, machine)


@pytest.mark.parametrize("source", SOURCES)
def test_drafts_that_are_never_right_are_tried_all_the_same(source: Source) -> None:
    """Else nothing above could fail."""
    _, engine = times_of(Machine(0.1), source, random_text(20), random_text(300), lambda place: False)
    drafts = engine.counters.drafts
    assert getattr(drafts, f"{source}_rejected") > 0 == getattr(drafts, f"{source}_accepted")


# --- and soon faster ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "prompt_length", "length", "right", "least", "at_first"),
    [
        ("prediction", 20, 16, 0.98, 1.5, 1.0),
        ("prediction", 20, 64, 0.98, 2.2, 1.2),
        ("prediction", 20, 256, 0.98, 3.0, 2.3),
        ("prediction", 400, 64, 0.98, 2.6, 2.0),
        ("grammar", 20, 64, 1.0, 2.5, 1.2),
        ("lookup", 300, 128, 0.95, 2.2, 1.5),
        ("model", 64, 128, 0.8, 1.4, 1.1),
        ("model", 500, 128, 0.8, 1.5, 1.3),
        ("model", 500, 512, 0.8, 1.7, 1.6),
    ],
)
def test_texts_that_are_drafted_well_take_a_fraction_of_their_time(
    source: Source, prompt_length: int, length: int, right: float, least: float, at_first: float
) -> None:
    """After the first token. `right`: how often a drafted token is; `at_first`: by an engine that has measured nothing
    but this text."""
    rng = random.Random(5)
    places = [rng.random() < right for _ in range(length)]
    for is_known, speed in ((True, least), (False, at_first)):
        machine = Machine(0.1, is_known=is_known)
        times, _ = times_of(machine, source, random_text(prompt_length), random_text(length), places.__getitem__)
        assert (length - 1) / (times[-1] - times[0]) >= speed


# --- the budget --------------------------------------------------------------------------------------------------


def test_a_budget_is_a_share_of_the_time_and_what_drafts_have_saved_up_to_some_steps() -> None:
    budget = DraftBudget()
    assert budget.available(1.0) == MAX_LOSS_FRACTION
    budget.prefilled(10.0)
    budget.decoded(1, 1.0, 0.0)
    assert budget.seconds == pytest.approx(11.0 * MAX_LOSS_FRACTION)
    budget.decoded(1, 1.0, 2.0)
    assert budget.seconds == pytest.approx(12.0 * MAX_LOSS_FRACTION - 2.0) and budget.available(1.0) < 0.0
    budget.decoded(6, 1.0, 1.5)
    assert budget.seconds == pytest.approx(18.0 * MAX_LOSS_FRACTION + 1.5)
    for _ in range(10):
        budget.decoded(49, 1.0, 4.0)
    assert budget.seconds == MAX_SAVED_STEPS
    budget.prefilled(1000.0)
    budget.decoded(1, 1.0, 0.0)
    assert budget.seconds == MAX_SAVED_STEPS + 1000.0 * MAX_LOSS_FRACTION, "nothing that is there is lost"


def test_one_slow_step_with_a_draft_does_not_end_drafts_for_good() -> None:
    """Also if it is the first one, with which nothing can be compared."""
    cost = StepCost()
    for _ in range(50):
        cost.observe(0, 1, 1.0)
    cost.observe(0, 2, 20.0)
    assert cost.most_row == pytest.approx(1.0)
    for _ in range(100):
        cost.observe(0, 1, 1.0)
    assert cost.most_row < 0.4


def test_a_step_that_yields_nothing_costs_its_drafts() -> None:
    budget = DraftBudget()
    budget.decoded(0, 1.0, 0.5)
    assert budget.seconds == -0.5
