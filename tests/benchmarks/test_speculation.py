"""The speculation benchmark: its texts are as described, and it detects an arm with wrong tokens."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from benchmarks.edits import CODE, PROSE, WordTokenizer, code_edits, prose_edit
from benchmarks.render_speculation import speculation_section
from benchmarks.scripted import ScriptedModel
from benchmarks.speculation import MIN_TURN_STEPS, OFF, ON, Arm, Run, compare, medians, run_case
from benchmarks.speculation_cases import KINDS, Case, Task, Workloads
from numpy.typing import NDArray

from onward.engine.model import Hook, Row, nothing
from onward.model_files.toy import ToyTokenizer
from onward.runtimes.toy.model import ToyModel

PROMPT = tuple(b"say it again, say it again")


class TimedToy(ToyModel):
    """A toy each step of which takes a second, and a tenth more per further token, of a virtual clock."""

    now = 0.0

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        self.now += 0.9 + 0.1 * sum(len(row.tokens) for row in rows)
        return super().evaluate(rows, before_compute)


def toy() -> TimedToy:
    return TimedToy(blocks=200, context_length=1024)


def arm(model: TimedToy, *, speculate: bool) -> Arm:
    return Arm(model, ToyTokenizer(), speculate=speculate, clock=lambda: model.now)


def arms() -> dict[str, Arm]:
    return {name: arm(toy(), speculate=name == ON) for name in (ON, OFF)}


def case(*tasks: Task, clients: int = 1) -> Case:
    return Case("prediction", "a test", clients, list(tasks))


# --- texts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [CODE, PROSE, *(edit.after for edit in code_edits())])
def test_a_text_is_split_into_words_of_a_usual_length_and_none_is_lost(text: str) -> None:
    tokenizer = WordTokenizer(0, 2000)
    ids = tokenizer.encode(text)
    words = {number: word for word, number in tokenizer._ids.items()}
    assert "".join(words[number] for number in ids) == text
    assert 3.5 < len(text) / len(ids) < 4.5


def test_every_edit_changes_its_text_and_keeps_most_of_it() -> None:
    tokenizer = WordTokenizer(0, 2000)
    for edit in [*code_edits(), prose_edit()]:
        before, after = tokenizer.encode(edit.before), tokenizer.encode(edit.after)
        assert before != after
        assert 400 < len(after) < 900
        assert len(set(pairwise(before)) & set(pairwise(after))) > 150


def test_too_many_distinct_words_are_an_error() -> None:
    with pytest.raises(ValueError, match="more distinct words"):
        WordTokenizer(0, 20).encode(PROSE)


def test_cases_fit_the_vocabulary_and_only_those_with_predictions_have_them() -> None:
    cases = Workloads(8192, 16).cases(KINDS)
    assert all(len(task.prompt) + task.tokens <= case.longest for case in cases for task in case.tasks)
    assert [each.kind for each in cases] == sorted((each.kind for each in cases), key=KINDS.index)
    assert {each.clients for each in cases if each.kind == "unpredictable"} == {1, 8, 32}
    for each in cases:
        for task in each.tasks:
            assert all(0 <= token < 8192 for token in (*task.prompt, *task.script, *task.prediction))
            assert task.tokens == len(task.script) or not task.script
            if each.kind != "unpredictable":
                assert bool(task.prediction) is (each.kind in ("prediction", "together"))


# --- forcing ---------------------------------------------------------------------------------------------------


def test_scripts_are_followed_exactly_and_a_job_without_one_samples_freely() -> None:
    scripts = [tuple(b"first of all"), tuple(b"and then another"), ()]
    tasks = [Task(PROMPT[index:], 12, script[:12]) for index, script in enumerate(scripts)]
    done = run_case(case(*tasks, clients=3), arms())
    for run in done.values():
        assert [bytes(run.generated[index]) for index in (0, 1)] == [b"first of all", b"and then ano"]
    assert done[ON].generated[2] == done[OFF].generated[2] != list(scripts[0])
    assert done[OFF].forcing_seconds > 0


def test_read_only_logits_are_copied() -> None:
    class ReadOnly(ToyModel):
        def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
            logits = super().evaluate(rows, before_compute)
            logits.flags.writeable = False
            return logits

    model = ScriptedModel(ReadOnly(blocks=200, context_length=1024))
    arm = Arm(model, ToyTokenizer(), speculate=False)
    arm.begin(case(Task(PROMPT, 3, tuple(b"abc"))))
    arm.advance(3)
    assert bytes(arm.run.generated[0]) == b"abc"


def test_only_the_scripted_logit_changes() -> None:
    plain, model = toy(), ScriptedModel(toy())
    rows = [Row(1, PROMPT, 0, [0], 2)]
    assert np.array_equal(plain.evaluate(rows), model.evaluate(rows))


# --- rounds ----------------------------------------------------------------------------------------------------


def test_a_correct_prediction_saves_steps() -> None:
    script, racers = tuple(range(97, 123)) * 4, arms()
    found = compare(case(Task(PROMPT, len(script), script, script)), lambda each: run_case(each, racers), 1)
    assert found["tokens"] == len(script)
    assert found["steps"][OFF] >= len(script)
    assert found["drafts"]["prediction accepted"] > 0
    assert found["steps"][ON] == found["steps"][OFF] - sum(
        count for key, count in found["drafts"].items() if key.endswith("accepted")
    )


def test_arms_are_interleaved_and_generate_all_tokens() -> None:
    tasks = [Task(PROMPT, 30) for _ in range(5)]
    done = run_case(case(*tasks, clients=2), arms())
    assert done[ON].tokens == done[OFF].tokens == 150
    assert len(done[ON].turn_rates) == len(done[OFF].turn_rates) == 75 // MIN_TURN_STEPS
    assert sum(map(len, done[ON].generated.values())) == 150


@pytest.mark.parametrize("wrong", ["arms differ", "script not followed"])
def test_a_wrong_token_aborts_the_benchmark(wrong: str) -> None:
    task = Task(PROMPT, 3, tuple(b"abc"))
    right = Run(generated={0: list(b"abc")}, tokens=3)
    broken = dataclasses.replace(right, generated={0: list(b"abd")})
    done = {ON: broken, OFF: right if wrong == "arms differ" else broken}
    with pytest.raises(RuntimeError, match="changed tokens" if wrong == "arms differ" else "script"):
        compare(case(task), lambda _: done, 1)


# --- figures ---------------------------------------------------------------------------------------------------


def test_figures_are_rendered_as_rows() -> None:
    drafts = Counter({"prediction accepted": 60, "prediction rejected": 20, "lookup accepted": 0, "lookup rejected": 0})

    def run(seconds: float, steps: int) -> Run:
        return Run(seconds, seconds * 2, seconds / 2, 100, 100, steps, seconds / 100, {0: []}, drafts, [100 / seconds])

    rounds = iter([{ON: run(1.0, 50), OFF: run(seconds, 100)} for seconds in (9.0, 2.0, 4.0, 3.0)])
    found = compare(case(Task(PROMPT, 100)), lambda _: next(rounds), 3)
    page = "\n".join(speculation_section({"m": {"cases": [found], "medians": medians([found])}}))
    assert (
        "| m | a test (prediction) | 1 | 33 | 3.00 (2.00 to 4.00) | 3.00 | 3.00 | 3.00 | 100 → 50 | 60 of 80 |" in page
    )
    assert "| m | copied, with `prediction` | **3.00** (3.00) |" in page
    assert "1.0% of an arm's time" in page
