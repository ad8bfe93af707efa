"""Searches and the sort of a row against numpy: block maxima, ranks, the highest logits, all of them in order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.sampling.sorting import sort_row
from onward.sampling.top_k import find_top_k, first_token_with_maximum, nth_token_with, rank_of
from onward.sampling.vocab_blocks import prepare_row
from tests.sampling.compiled import PreparedRow, call
from tests.sampling.harness import normal

SIZE = 300
Logits = NDArray[np.float32]


def descending(row: Logits, floor: float, count: int) -> list[float]:
    """Return the logits of a row as the kernel sorts them."""
    prepared = PreparedRow(row, prepare_row)
    size = call(sort_row, prepared.address, prepared.scratch.address, floor, count)
    found: list[float] = prepared.scratch.arrays["sorted"][:size].tolist()
    return found


def test_rows_are_sorted_with_ties_zeros_and_infinities() -> None:
    row = np.array([0.0, -0.0, 3.5, -np.inf, 3.5, -1e30, 1e-40, np.finfo(np.float32).max], np.float32)
    assert descending(row, -np.inf, row.size) == sorted(row[row > -np.inf].tolist(), reverse=True)
    assert descending(row, 0.0, row.size) == sorted(row[row >= 0].tolist(), reverse=True)
    large = normal(20_000, scale=9.0)
    assert descending(large, -np.inf, large.size) == np.sort(large)[::-1].tolist()


@given(st.integers(1, 400), st.sampled_from((0.0, 0.01, 0.5, -math.inf)), st.sampled_from((0, 1, 6)))
def test_the_highest_logits_are_sorted_without_the_others(count: int, floor: float, decimals: int) -> None:
    row = np.round(normal(SIZE, seed=count), decimals)
    row[::7] = -np.inf
    everything = descending(row, floor, SIZE)
    found = descending(row, floor, count)
    assert found == everything[: len(found)] and len(found) >= min(count, len(everything))
    assert len(found) <= count or found[-1] == found[count - 1]


@pytest.mark.parametrize("size", [1, 15, 511, 512, 513, 1500, 1536])
@pytest.mark.parametrize("decimals", [0, 6])
def test_searches_find_what_numpy_finds(size: int, decimals: int) -> None:
    row = np.round(normal(size, seed=size), decimals)
    prepared = PreparedRow(row, prepare_row)
    order = np.lexsort((np.arange(size), -row))
    assert prepared.maximum == row.max()
    assert call(first_token_with_maximum, prepared.address) == order[0]
    for token in {0, size // 2, size - 1}:
        assert call(rank_of, prepared.address, token) == order.tolist().index(token) + 1
        earlier = int(np.count_nonzero(row[:token] == row[token]))
        assert call(nth_token_with, prepared.address, float(row[token]), earlier) == token
    count = min(size, 20)
    ids, values = np.empty(count, np.int64), np.empty(count, np.float32)
    call(find_top_k, prepared.address, count, ids, values)
    assert ids.tolist() == order[:count].tolist() and values.tolist() == row[order[:count]].tolist()


@pytest.mark.parametrize("bad", [np.nan, -np.nan])
@pytest.mark.parametrize("place", [0, 510, 515])
def test_the_maximum_of_a_row_with_a_nan_is_nan(bad: float, place: int) -> None:
    row = normal(516)
    row[place] = bad
    assert math.isnan(PreparedRow(row, prepare_row).maximum)
