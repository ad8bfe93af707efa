"""Each token is scored once, in the windows of lm-evaluation-harness."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onward.cli.score.scoring import windows


def harness_windows(num_tokens: int, window: int, context: int) -> list[tuple[int, int, int]]:
    """lm-evaluation-harness' get_rolling_token_windows and make_disjoint_window (lm_eval/utils.py, 0.4.13), as
    (start, first scored, end) in a sequence whose token 0 is the prefix."""
    length, found = window - 1, []
    predicted = min(length, num_tokens)
    found.append((0, 1, predicted + 1))
    while predicted < num_tokens:
        count = min(num_tokens - predicted, length - context + 1)
        end = predicted + count
        found.append((end - length, end - count + 1, end + 1))
        predicted += count
    return found


@given(num_tokens=st.integers(1, 60), window=st.integers(2, 20), data=st.data())
def test_windows_are_those_of_the_harness(num_tokens: int, window: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(1, window - 1))
    ours = [(part.start, part.first, part.end) for part in windows(num_tokens + 1, 1, window, overlap)]
    assert ours == harness_windows(num_tokens, window, overlap)


@given(num_tokens=st.integers(1, 60), size=st.integers(2, 20), data=st.data())
def test_each_token_is_scored_once_after_at_least_one_other(num_tokens: int, size: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, min(num_tokens, size - 1)))
    parts = windows(num_tokens, first, size, 1)
    scored = [index for part in parts for index in range(part.first, part.end)]
    assert scored == list(range(first, num_tokens))
    assert all(part.start < part.first and part.end - part.start <= size for part in parts)
