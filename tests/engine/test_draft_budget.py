"""Whatever is drafted, a text takes at most 1/0.97 of its time without drafts, at each of its tokens; and where drafts
are right, they start soon. In virtual time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from benchmarks.draft_costs import (
    WRONG,
    Completions,
    IsRight,
    Machine,
    ScriptedDraft,
    ScriptedModel,
    ScriptedPredictor,
    never,
    plain_times,
    random_text,
    right_in,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.engine.draft_budget import MAX_LOSS_FRACTION, MAX_SAVED_STEPS, DraftBudget
from onward.engine.drafter import MAX_DRAFT_TOKENS, Drafter, Proposal
from onward.engine.model import Hook, Row, nothing
from onward.engine.pacing import StepCost
from onward.engine.step import Engine
from tests.examples import examples

LEAST_SPEED = 0.97

Source = Literal["prediction", "lookup", "grammar", "model"]


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


def times_of(
    machine: Machine,
    source: Source,
    prompt: Sequence[int],
    script: Sequence[int],
    is_right: IsRight,
    *,
    before: Sequence[tuple[int, float]] = (),
) -> tuple[list[float], Engine]:
    """When each token of a text came, and the engine after it. `before`: prompts, of so many tokens and seconds, that
    an engine has computed before whose costs are known."""
    completions = Completions(machine, draft=ScriptedDraft if source == "model" else None)
    engine = completions.engine
    for num_tokens, seconds in before:
        engine._cost.observe(num_tokens, 0, seconds)

    def claim() -> None:
        for sequence in engine.scheduler.running:
            if source != "model" and not isinstance(sequence.drafter, Claims):
                sequence.drafter = Claims(sequence.tokens, len(prompt), script, is_right)
                sequence.drafter.source = source

    times = completions.complete(prompt, script, is_right, claim)
    assert len(times) == len(script)
    return times, engine


def require_bound(times: Sequence[float], machine: Machine, excess: float = 0.0) -> None:
    """`excess`: seconds that do not count."""
    for place, (time, plain) in enumerate(zip(times, plain_times(times, machine), strict=True)):
        assert plain >= LEAST_SPEED * (time - excess), f"{plain / time:.4f} times as fast after {place + 1} tokens"


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


@settings(max_examples=examples(150))
@given(
    cost=st.floats(0.01, 5.0),
    row=st.sampled_from([0.01, 0.05, 0.1, 0.25]),
    is_known=st.booleans(),
    fraction=st.sampled_from([0.0, 0.2, 0.5, 0.8, 0.95, 1.0]),
    texts=st.lists(st.tuples(st.sampled_from([1, 20, 64, 300]), st.sampled_from([16, 32, 100, 400])), max_size=5),
    is_predictor=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_whatever_a_draft_model_costs_and_however_often_it_is_right_it_holds_for_text_after_text(
    cost: float,
    row: float,
    is_known: bool,
    fraction: float,
    texts: list[tuple[int, int]],
    is_predictor: bool,
    seed: int,
) -> None:
    """From the very first one of an engine on: what its steps cost was measured at load. So it is with a layer of the
    model, which needs the whole prompt."""
    machine = Machine(row, draft=cost, is_known=is_known)
    completions = Completions(machine, draft=ScriptedPredictor if is_predictor else ScriptedDraft)
    for number, (prompt_length, length) in enumerate(texts, seed):
        is_right = right_in(fraction, length, number)
        prompt, script = random_text(prompt_length, number + 10_000), random_text(length, number)
        require_bound(completions.complete(prompt, script, is_right), machine)


@settings(max_examples=examples(100))
@given(
    cost=st.floats(0.01, 0.5),
    slow=st.floats(0.5, 5.0),
    place=st.integers(0, 99),
    length=st.sampled_from([16, 32, 100, 400]),
    prompt_length=st.sampled_from([1, 20, 300]),
    fraction=st.sampled_from([0.0, 0.8, 1.0]),
    seed=st.integers(0, 1000),
)
def test_a_draft_model_that_becomes_slow_exceeds_the_bound_by_two_steps_of_its_own(
    cost: float, slow: float, place: int, length: int, prompt_length: int, fraction: float, seed: int
) -> None:
    """The first one, and another one that shows that it was no accident; in all of its texts together."""
    machine = Machine(0.05, draft=cost)
    completions, draft = with_slow_draft(machine)
    seconds = plain_seconds = 0.0
    for number in range(seed, seed + 6):
        is_right = right_in(fraction, length, number)
        prompt, script = random_text(prompt_length, number + 10_000), random_text(length, number)

        def slow_down(first: bool = number == seed + 1) -> None:
            if first and all(each.num_generated > place % length for each in completions.engine.scheduler.running):
                draft.become(slow)

        times = completions.complete(prompt, script, is_right, slow_down)
        require_bound(times, machine, draft.excess)
        seconds, plain_seconds = seconds + times[-1], plain_seconds + plain_times(times, machine)[-1]
    assert plain_seconds >= LEAST_SPEED * (seconds - draft.excess)


class SlowDraft(ScriptedDraft):
    """A draft model that becomes slow, and remembers how long its steps have taken since."""

    def __init__(self, model: ScriptedModel, seconds: float) -> None:
        super().__init__(model, seconds)
        self._slow: list[float] | None = None

    @property
    def excess(self) -> float:
        """Seconds of the two longest steps."""
        return sum(sorted(self._slow or ())[-2:])

    def become(self, seconds: float) -> None:
        self.seconds, self._slow = max(seconds, self.seconds), self._slow or []

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        began = self._model.now
        logits = super().evaluate(rows, before_compute)
        if self._slow is not None:
            self._slow.append(self._model.now - began)
        return logits


def with_slow_draft(machine: Machine) -> tuple[Completions, SlowDraft]:
    completions = Completions(machine, draft=SlowDraft)
    assert isinstance(completions.draft, SlowDraft)
    return completions, completions.draft


@settings(max_examples=examples(60))
@given(
    slow=st.floats(0.05, 3.0),
    share=st.sampled_from([0.05, 0.3, 0.6]),
    length=st.sampled_from([16, 32, 60]),
    fraction=st.sampled_from([0.0, 0.6, 1.0]),
    seed=st.integers(0, 1000),
)
def test_a_draft_model_of_which_nothing_can_be_known_exceeds_it_by_no_more(
    slow: float, share: float, length: int, fraction: float, seed: int
) -> None:
    """Each of its steps may take as long as many others: not with each text anew."""
    machine, rng = Machine(0.05, draft=0.01), random.Random(seed)
    completions, draft = with_slow_draft(machine)
    draft.become(0.01)
    seconds = plain_seconds = 0.0

    def vary() -> None:
        draft.seconds = slow if rng.random() < share else 0.01

    for number in range(seed, seed + 20):
        is_right = right_in(fraction, length, number)
        times = completions.complete(random_text(20, number + 10_000), random_text(length, number), is_right, vary)
        seconds, plain_seconds = seconds + times[-1], plain_seconds + plain_times(times, machine)[-1]
        assert plain_seconds >= LEAST_SPEED * (seconds - draft.excess)


@pytest.mark.parametrize("search", [0.02, 0.2])
@pytest.mark.parametrize("fraction", [None, 0.0, 0.9])
def test_the_time_in_which_drafts_are_searched_for_counts(search: float, fraction: float | None) -> None:
    """But for the first search, of which nothing is known. None: it finds nothing."""
    machine = Machine(0.05)
    completions = Completions(machine, draft=None)
    script = random_text(600)

    class Searching(Claims):
        def follow(self) -> bool:
            completions.model.now += search
            return fraction is not None

    def claim() -> None:
        for sequence in completions.engine.scheduler.running:
            if not isinstance(sequence.drafter, Searching):
                sequence.drafter = Searching(sequence.tokens, 20, script, right_in(fraction or 0.0, 700))

    times = completions.complete(random_text(20, 2), script, never, claim)
    require_bound(times, machine, excess=search)
    assert times[-1] > times[0] + 599 or fraction, "it is searched"


def test_a_search_that_was_delayed_does_not_end_drafts() -> None:
    """Nor is its time that of the step."""
    completions, script, num_searches = Completions(Machine(0.05), draft=None), random_text(400), 0

    class Delayed(Claims):
        def follow(self) -> bool:
            nonlocal num_searches
            num_searches += 1
            completions.model.now += 1000.0 * (num_searches == 3)
            return True

    def claim() -> None:
        for sequence in completions.engine.scheduler.running:
            if not isinstance(sequence.drafter, Delayed):
                sequence.drafter = Delayed(sequence.tokens, 20, script, right_in(1.0, 500))

    times = completions.complete(random_text(20, 2), script, never, claim)
    assert num_searches > 10 and times[-1] < 1000.0 + 200.0
    assert completions.engine._cost.plain(1) < 1.1


def long_cases() -> list[Any]:
    """The slow tests have every machine with every third kind of text by turns, and companions the other kinds."""
    found = []
    for (place, machine), (index, kind), source in product(enumerate(MACHINES), enumerate(KINDS), SOURCES):
        marks = [pytest.mark.slow] if (place + index) % 3 == 0 else [pytest.mark.slow, pytest.mark.companion]
        found.append(pytest.param(machine, source, kind, marks=marks, id=f"{kind}-{source}-{machine}"))
    return found


@pytest.mark.parametrize(("machine", "source", "kind"), long_cases())
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


@pytest.mark.parametrize(("length", "least"), [(128, 0.45), (256, 0.65), (1024, 0.85)])
def test_a_good_draft_model_saves_nearly_what_it_can(length: int, least: float) -> None:
    """Of the gain that drafts of the best length, always the same, would have from the first token on. By an engine
    that has measured nothing before."""
    cost, row, right = 0.1, 0.05, 0.8
    ideal = max((1 - right ** (size + 1)) / (1 - right) / (1 + size * (cost + row)) for size in range(16))
    completions = Completions(Machine(row, draft=cost, is_known=False))
    seconds = 0.0
    for number in range(4):
        prompt, script = random_text(64, number + 10_000), random_text(length, number)
        times = completions.complete(prompt, script, right_in(right, length, number))
        seconds += times[-1] - times[0]
    assert 4 * (length - 1) / seconds - 1 >= least * (ideal - 1)


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


def test_a_step_that_yields_nothing_costs_its_drafts() -> None:
    budget = DraftBudget()
    budget.decoded(0, 1.0, 0.5)
    assert budget.seconds == -0.5


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
