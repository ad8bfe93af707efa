"""Infilling examples keep the whole text and end correctly."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer

from training import infill
from training.tests.conftest import CODE, STORY
from training.tokenizer import END_OF_TEXT, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, special_ids

TEXTS = [(STORY, False), (CODE, True), ("x", False), ("\n\n", True), ("one word", False)]


@pytest.mark.parametrize(("text", "is_code"), TEXTS)
def test_a_cut_keeps_the_text(text: str, is_code: bool) -> None:
    for seed in range(200):
        cut = infill.choose_cut(text, is_code=is_code, rng=random.Random(seed))
        assert cut.prefix + cut.middle + cut.suffix == text


@pytest.mark.parametrize("kind", sorted(infill.CODE_SPANS))
def test_spans_of_a_line_do_not_cross_lines(kind: str) -> None:
    if kind in ("characters", "lines"):
        return
    for seed in range(100):
        start, end = infill._SPAN_KINDS[kind](CODE, random.Random(seed))
        assert "\n" not in CODE[start:end]


def test_psm_order(tokenizer: Tokenizer) -> None:
    ids = special_ids(tokenizer)
    example = infill.prefix_suffix_middle(tokenizer, infill.Cut("a b", " c", " d"))
    marks = [i for i in example if i in ids.values()]
    assert marks == [ids[FIM_PREFIX], ids[FIM_SUFFIX], ids[FIM_MIDDLE], ids[END_OF_TEXT]]
    assert tokenizer.decode(example[example.index(ids[FIM_MIDDLE]) + 1 : -1]) == " c"


def test_spm_order(tokenizer: Tokenizer) -> None:
    ids = special_ids(tokenizer)
    example = infill.suffix_prefix_middle(tokenizer, infill.Cut("a b", " c", " d"))
    assert example[:2] == [ids[FIM_PREFIX], ids[FIM_SUFFIX]]
    assert tokenizer.decode(example[example.index(ids[FIM_MIDDLE]) + 1 : -1]) == "a b c"
    assert example[-1] == ids[END_OF_TEXT]


def test_the_prompt_is_the_start_of_a_training_example(tokenizer: Tokenizer) -> None:
    example = infill.prefix_suffix_middle(tokenizer, infill.Cut("a b", " c", " d"))
    prompt = infill.infill_prompt(tokenizer, "a b", " d", "psm")
    assert example[: len(prompt)] == prompt
    example = infill.suffix_prefix_middle(tokenizer, infill.Cut("a b", " c", " d"))
    prompt = infill.infill_prompt(tokenizer, "a b", " d", "spm")
    assert example[: len(prompt)] == prompt


def test_the_number_of_middle_tokens_is_returned(tokenizer: Tokenizer) -> None:
    for seed in range(50):
        ids, middle = infill.transform(tokenizer, STORY, is_code=False, rng=random.Random(seed))
        assert ids[-1] == special_ids(tokenizer)[END_OF_TEXT]
        assert tokenizer.decode(ids[-middle:]) in STORY
