"""Special tokens are found first, in any text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.checkpoints.normalization import longest_of

TEXTS = st.text(st.sampled_from("ab.<|\n"), min_size=1, max_size=5)


@given(texts=st.sets(TEXTS, min_size=1, max_size=12), text=st.text(st.sampled_from("ab.<|\n"), max_size=30))
def test_the_longest_token_is_found_at_each_position(texts: set[str], text: str) -> None:
    listed = "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
    assert re.findall(longest_of(texts), text) == re.findall(listed, text)


def test_common_prefixes_of_special_tokens_are_compared_once() -> None:
    """Thousands of alternatives tried one by one would hold the interpreter's lock for seconds."""
    assert longest_of(f"<unused{number}>" for number in range(6242)).count("unused") == 1


@pytest.mark.parametrize("length", [31, 512])
def test_runs_of_a_character_are_found_whole(length: int) -> None:
    runs = ["\n" * number for number in range(1, length + 1)]
    assert re.findall(longest_of(runs), "\n" * (length + 1)) == ["\n" * length, "\n"]
