"""How the rows of a step are written into the graph's inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onward.engine.model import Row
from onward.runtimes.openvino.batch import INPUTS, Batch
from onward.runtimes.openvino.invariance import WINDOWS
from onward.runtimes.openvino.window import BLOCK_TOKENS

SCRATCH = 99


class Request:
    """Replaces an infer request: keeps the tensors that were bound."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}

    def set_tensor(self, name: str, tensor: Any) -> None:
        self.tensors[name] = tensor

    def inputs(self) -> dict[str, Any]:
        return {name: np.asarray(tensor.data).tolist() for name, tensor in self.tensors.items()}


def laid_out(rows: list[Row], threads: int = 1, least: int | None = None) -> tuple[dict[str, Any], int]:
    request = Request()
    batch = Batch(request, INPUTS, SCRATCH, threads)
    batch.min_tokens = least or batch.min_tokens
    wanted = batch.fill(rows)
    return request.inputs(), wanted


def test_rows_follow_one_another() -> None:
    inputs, wanted = laid_out([Row(0, [5, 6, 7], 30, [4, 8, 9], 2), Row(1, [3], 2, [1], 1)])
    assert wanted == 3
    assert inputs == {
        "input_ids": [5, 6, 7, 3],
        "position_ids": [30, 31, 32, 2],
        "past_lens": [30, 2],
        "subsequence_begins": [0, 3, 4],
        "block_indices": [4, 8, 1],
        "block_indices_begins": [0, 2, 3],
        "max_context_len": 33,
        "output_rows": [1, 2, 3, 3],
    }


@pytest.mark.parametrize(
    ("rows", "threads", "padding"),
    [(1, 1, [1]), (2, 1, []), (3, 4, [1]), (4, 4, []), (1, 16, [2]), (13, 16, [1, 1, 1]), (9, 1, [1, 1, 1])],
)
def test_steps_of_single_tokens_are_padded_to_the_number_of_threads_and_to_a_padded_count(
    rows: int, threads: int, padding: list[int]
) -> None:
    inputs, wanted = laid_out([Row(q, [7], 3, [q], 1) for q in range(rows)], threads)
    assert wanted == rows
    assert np.diff(inputs["subsequence_begins"]).tolist() == [1] * rows + padding
    assert inputs["block_indices"][rows:] == [SCRATCH] * len(padding)
    assert inputs["past_lens"][rows:] == [0] * len(padding)
    assert all(index < rows for index in inputs["output_rows"])


@pytest.mark.parametrize("least", sorted({window.min_tokens for window in WINDOWS} | {BLOCK_TOKENS}))
@pytest.mark.parametrize("threads", [1, 2, 16, 33, 48, 96])
def test_padding_meets_the_minimum_of_threads_and_window_and_adds_little_more(threads: int, least: int) -> None:
    """A step has at least as many rows as threads, or a row of several tokens; padding is small where a window limits
    calls."""
    for rows in range(1, 60):
        inputs, wanted = laid_out([Row(q, [7], 3, [q], 1) for q in range(rows)], threads, least)
        lengths = np.diff(inputs["subsequence_begins"]).tolist()
        assert wanted == rows
        assert max(rows, least) <= sum(lengths) <= max(rows, least) + 3
        assert len(lengths) >= threads or max(lengths) > 1
        assert set(inputs["block_indices"][rows:]) <= {SCRATCH}


def test_a_row_of_several_tokens_needs_no_padding() -> None:
    inputs, _ = laid_out([Row(0, [1, 2], 0, [0], 1)], threads=16)
    assert inputs["past_lens"] == [0]


def test_a_single_output_row_is_computed_twice() -> None:
    inputs, wanted = laid_out([Row(0, [1, 2], 0, [0], 1)])
    assert (inputs["output_rows"], wanted) == ([1, 1], 1)


def test_without_outputs_no_rows_are_computed() -> None:
    inputs, wanted = laid_out([Row(0, [1, 2], 0, [0], 0)])
    assert (inputs["output_rows"], wanted) == ([], 0)


def test_nothing_of_a_larger_step_is_left_in_the_next_one() -> None:
    request = Request()
    batch = Batch(request, INPUTS, SCRATCH, 1)
    batch.fill([Row(0, list(range(2000)), 0, range(63), 2000)])
    batch.fill([Row(0, [1, 2], 0, [0], 2)])
    assert request.inputs() == laid_out([Row(0, [1, 2], 0, [0], 2)])[0]


def test_inputs_that_a_graph_does_not_have_are_skipped() -> None:
    request = Request()
    Batch(request, INPUTS - {"position_ids", "max_context_len"}, SCRATCH, 1).fill([Row(0, [1, 2], 0, [0], 1)])
    assert set(request.inputs()) == INPUTS - {"position_ids", "max_context_len"}
