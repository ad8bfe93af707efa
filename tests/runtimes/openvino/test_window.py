"""Steps split into calls of a limited size: nothing is lost or reordered, or uses another kernel."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from onward.engine.model import Row
from onward.runtimes.openvino.window import BLOCK_TOKENS, Window
from tests.examples import examples


@st.composite
def steps(draw: st.DrawFn) -> list[Row]:
    """Decode rows and prefill chunks in any order, as the engine schedules them."""
    rows = []
    for sequence in range(draw(st.integers(1, 12))):
        length = draw(st.one_of(st.just(1), st.integers(1, 300)))
        rows.append(
            Row(sequence, list(range(length)), draw(st.integers(0, 200)), range(64), draw(st.integers(0, length)))
        )
    return rows


def flat(rows: list[Row]) -> list[tuple[int, int, int, bool]]:
    """Return each token as (sequence, token, position, whether its logits are requested), in order."""
    return [
        (row.sequence, token, row.start + index, index >= len(row.tokens) - row.outputs)
        for row in rows
        for index, token in enumerate(row.tokens)
    ]


@settings(max_examples=examples(300))
@given(rows=steps(), most=st.sampled_from([64, 80, 128, 256]))
def test_calls_are_the_step_in_order_and_none_is_too_large(rows: list[Row], most: int) -> None:
    pieces = Window(max_tokens=most).split(rows)
    assert flat([row for piece in pieces for row in piece]) == flat(rows)
    assert all(0 < sum(len(row.tokens) for row in piece) <= most for piece in pieces)


@settings(max_examples=examples(300))
@given(rows=steps(), most=st.sampled_from([64, 80, 128]))
def test_a_chunk_is_cut_at_block_boundaries_and_leaves_no_single_token(rows: list[Row], most: int) -> None:
    whole = {row.sequence: row for row in rows}
    for piece in Window(max_tokens=most).split(rows):
        for row in piece:
            uncut = whole[row.sequence]
            assert len(row.tokens) > 1 or len(uncut.tokens) == 1
            assert row.start == uncut.start or row.start % BLOCK_TOKENS == 0


def test_a_step_that_fits_is_one_call() -> None:
    rows = [Row(0, [1, 2, 3], 0, [0], 1)]
    assert Window().split(rows)[0] is rows
    assert Window(max_tokens=64).split(rows)[0] is rows


def test_drafts_of_a_sequence_stay_in_order_over_several_calls() -> None:
    rows = [Row(0, [token], 40 + token, [0, 1, 2, 3, 4], 1) for token in range(100)]
    pieces = Window(max_tokens=64).split(rows)
    assert [row.start for piece in pieces for row in piece] == list(range(40, 140))
    assert [len(piece) for piece in pieces] == [64, 36]
