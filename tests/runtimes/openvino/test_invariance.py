"""The check at load detects kernels that depend on the size of a step, and finds sizes at which they do not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.engine.model import Row
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.fingerprint import with_facts
from onward.runtimes.index import read_index
from onward.runtimes.kv_plan import MIN_CONTEXT_TOKENS
from onward.runtimes.openvino import load
from onward.runtimes.openvino.invariance import (
    MIN_BLOCKS,
    NOTE,
    WINDOWS,
    Evaluate,
    find_window,
    is_invariant,
    stored_window,
)
from onward.runtimes.openvino.load import load_model
from onward.runtimes.openvino.window import STEP_SHAPE, Window
from tests.examples import slow_but

VOCABULARY = 50


class Machine:
    """Logits are a function of a token, its position and the kernel that the number of tokens in a call chooses."""

    def __init__(self, kernel: Callable[[int], int]) -> None:
        self._kernel = kernel
        self.blocks: set[int] = set()

    def with_window(self, window: Window) -> Evaluate:
        return lambda rows: np.concatenate([self._call(piece, window.min_tokens) for piece in window.split(rows)])

    def _call(self, rows: Sequence[Row], least: int) -> NDArray[np.float32]:
        kernel = self._kernel(max(least, sum(len(row.tokens) for row in rows)))
        logits = [np.empty((0, 3), np.float32)]
        for row in rows:
            self.blocks.update(row.blocks)
            end = row.start + len(row.tokens)
            ats = range(end - row.outputs, end)
            logits += [np.array([[row.tokens[at - row.start], at, kernel]], np.float32) for at in ats]
        return np.concatenate(logits)


@pytest.mark.parametrize(
    ("kernel", "window"),
    [
        (lambda tokens: 0, Window()),
        (lambda tokens: int(tokens > 80), Window(max_tokens=64)),
        (lambda tokens: int(tokens > 64), Window(max_tokens=64)),
        (lambda tokens: int(tokens > 4), Window(min_tokens=5)),
        (lambda tokens: int(4 < tokens <= 80), Window(min_tokens=5, max_tokens=64)),
        (lambda tokens: int(tokens > 16) + int(tokens > 80), Window(min_tokens=17, max_tokens=64)),
        (lambda tokens: int(tokens > 4) + int(tokens > 300), Window(min_tokens=5, max_tokens=64)),
        (lambda tokens: tokens, None),
    ],
    ids=[
        "one kernel",
        "long steps",
        "above two blocks",
        "short steps",
        "both",
        "sixteen",
        "very long steps",
        "each size its own",
    ],
)
def test_the_window_is_one_with_a_single_kernel(kernel: Callable[[int], int], window: Window | None) -> None:
    assert find_window(Machine(kernel).with_window, VOCABULARY) == window


def test_drafts_that_differ_from_single_steps_are_detected() -> None:
    def drafted(rows: Sequence[Row]) -> NDArray[np.float32]:
        logits = Machine(lambda tokens: 0).with_window(Window())(rows)
        seen: set[int] = set()
        for index, row in enumerate(rows):
            logits[index] += row.sequence in seen and len(row.tokens) == 1 and row.sequence == 0
            seen.add(row.sequence)
        return logits

    assert not is_invariant(drafted, VOCABULARY)


def test_the_check_needs_no_more_blocks_than_the_smallest_cache_has() -> None:
    machine = Machine(lambda tokens: 0)
    is_invariant(machine.with_window(Window()), VOCABULARY)
    assert machine.blocks <= set(range(MIN_BLOCKS))
    assert STEP_SHAPE.blocks_for(MIN_CONTEXT_TOKENS) >= MIN_BLOCKS


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_a_window_is_stored(window: Window, tmp_path: Path) -> None:
    assert stored_window(tmp_path, "fp_1 2", lambda: window) == window
    assert stored_window(tmp_path, "fp_1 2", lambda: pytest.fail("checked again")) == window
    other = Window(min_tokens=9)
    assert stored_window(tmp_path, "fp_1 4", lambda: other) == other


def test_what_is_stored_and_hashed_for_a_window_never_changes(tmp_path: Path) -> None:
    """Fingerprints of models in a window contain its label."""
    stored_window(tmp_path, "fp_1 2", lambda: Window(5, 64))
    assert read_index(tmp_path) == {"window 5 fp_1 2": "Window(least=5, most=64)"}
    assert with_facts("fp_1", Window(5, 64).label, 2) == "fp_6b16846dcd"


def test_a_window_that_was_not_found_is_searched_again(tmp_path: Path) -> None:
    assert stored_window(tmp_path, "fp_1 2", lambda: None) is None
    assert stored_window(tmp_path, "fp_1 2", Window) == Window()


@pytest.mark.slow
def test_a_second_start_uses_the_stored_window(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = RuntimeOptions(cache_dir=tmp_path / "cache")
    first = load_model(tiny_folder, options).fingerprint
    monkeypatch.setattr(load, "find_window", lambda *arguments: pytest.fail("checked again"))
    assert load_model(tiny_folder, options).fingerprint == first


@pytest.mark.slow
def test_a_model_without_a_window_has_a_note_and_another_fingerprint(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = load_model(tiny_folder)
    monkeypatch.setattr(load, "find_window", lambda *arguments: None)
    model = load_model(tiny_folder)
    assert usual.notes == []
    assert model.notes == [NOTE]
    assert model.fingerprint != usual.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    slow_but([Window(5, 64)], [Window(max_tokens=64), Window(min_tokens=5), Window(min_tokens=5, max_tokens=64)]),
    ids=str,
)
def test_a_model_in_a_window_has_the_same_logits_and_another_fingerprint(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, window: Window
) -> None:
    usual = load_model(tiny_folder)
    needed = usual._open()[0].window  # a processor with AMX needs one of its own
    window = Window(max(window.min_tokens, needed.min_tokens), window.max_tokens or needed.max_tokens)
    monkeypatch.setattr(load, "find_window", lambda *arguments: window)
    model = load_model(tiny_folder)
    assert (model.fingerprint != usual.fingerprint) == (window != needed)
    assert is_invariant(model.evaluate, model.vocab_size)
    prompt = [(7 * at) % 300 for at in range(150)]
    rows = [
        *(Row(1, [at], at, (9,), 1) for at in range(20)),
        Row(0, prompt, 0, (0, 1, 2, 3, 4), 150),
        Row(2, [5, 6, 7], 0, (8,), 2),
    ]
    expected = usual.evaluate(rows)
    calls: list[int] = []
    logits = model.evaluate(rows, lambda: calls.append(len(rows)))
    assert calls == [len(rows)], "the hook is called once, however many calls the step takes"
    assert logits.shape == expected.shape
    assert logits.tobytes() == expected.tobytes()
