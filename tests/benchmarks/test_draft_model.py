"""The benchmark of draft models: what it counts, and that it detects an arm with other tokens."""

from __future__ import annotations

import pytest
from benchmarks.draft_model import Arm, compare, line, texts
from benchmarks.measure import BenchmarkError

from onward.engine import draft_budget
from onward.model_files.toy import ToyTokenizer
from onward.runtimes.toy.model import ToyModel
from tests.toy_backend import let_steps_count_the_same

PROMPT = list(b"once upon a time")


def toy(context_length: int = 512) -> ToyModel:
    return ToyModel(blocks=64, context_length=context_length)


def test_an_arm_with_a_draft_model_has_the_same_tokens_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_budget, "MAX_LOSS_FRACTION", 1000.0)
    let_steps_count_the_same(monkeypatch)
    arms = {"with": Arm(toy(), ToyTokenizer(), toy()), "without": Arm(toy(), ToyTokenizer(), None)}
    first = arms["with"].run(PROMPT, 40, 0.8)
    assert first.accepted > 0 and first.draft_seconds > 0 and first.steps < 41, "it is tried at first"
    found = compare(arms, PROMPT, 40, 0.8, 2)
    for arm in arms.values():
        arm.close()
    assert found["accepted_fraction"] is None or 0.0 <= found["accepted_fraction"] <= 1.0
    assert found["tokens_per_step"] > 0.9
    assert 0.0 <= found["draft_fraction"] < 1.0 and found["ratio"]["rounds"] == 2
    case = {"kind": "prose", "temperature": 0.8, **found}
    assert "accepted 50%" in line(case | {"accepted_fraction": 0.5})
    assert "nothing drafted" in line(case | {"accepted_fraction": None})


class Other(ToyModel):
    def _logits(self, value: int):  # type: ignore[no-untyped-def]
        return super()._logits(value + 1)


def test_other_tokens_are_an_error() -> None:
    arms = {"with": Arm(Other(), ToyTokenizer(), None), "without": Arm(toy(), ToyTokenizer(), None)}
    with pytest.raises(BenchmarkError, match="changed a token"):
        compare(arms, PROMPT, 40, 0.0, 1)


def test_texts_are_prose_and_code_of_the_same_length() -> None:
    found = list(texts(ToyTokenizer(), 32, 3))
    assert [kind for kind, _ in found] == ["prose"] * 3 + ["code"] * 3
    assert {len(ids) for _, ids in found} == {32}
