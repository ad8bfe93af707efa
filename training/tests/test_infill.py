"""Infilling examples keep the whole text and end where they should."""

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
        cut = infill.choose_cut(text, is_code=is_code, draw=random.Random(seed))
        assert cut.prefix + cut.middle + cut.suffix == text


@pytest.mark.parametrize("kind", sorted(infill.CODE_SPANS))
def test_spans_of_a_line_stay_in_it(kind: str) -> None:
    if kind in ("characters", "lines"):
        return
    for seed in range(100):
        start, end = infill._SPAN_KINDS[kind](CODE, random.Random(seed))
        assert "\n" not in CODE[start:end]


def test_psm_order(tokenizer: Tokenizer) -> None:
    ids = special_ids(tokenizer)
    made = infill.prefix_suffix_middle(tokenizer, infill.Cut("a b", " c", " d"))
    marks = [i for i in made if i in ids.values()]
    assert marks == [ids[FIM_PREFIX], ids[FIM_SUFFIX], ids[FIM_MIDDLE], ids[END_OF_TEXT]]
    assert tokenizer.decode(made[made.index(ids[FIM_MIDDLE]) + 1 : -1]) == " c"


def test_spm_order(tokenizer: Tokenizer) -> None:
    ids = special_ids(tokenizer)
    made = infill.suffix_prefix_middle(tokenizer, infill.Cut("a b", " c", " d"))
    assert made[:2] == [ids[FIM_PREFIX], ids[FIM_SUFFIX]]
    assert tokenizer.decode(made[made.index(ids[FIM_MIDDLE]) + 1 : -1]) == "a b c"
    assert made[-1] == ids[END_OF_TEXT]


def test_the_prompt_is_the_start_of_a_training_example(tokenizer: Tokenizer) -> None:
    made = infill.prefix_suffix_middle(tokenizer, infill.Cut("a b", " c", " d"))
    prompt = infill.infill_prompt(tokenizer, "a b", " d", "psm")
    assert made[: len(prompt)] == prompt
    made = infill.suffix_prefix_middle(tokenizer, infill.Cut("a b", " c", " d"))
    prompt = infill.infill_prompt(tokenizer, "a b", " d", "spm")
    assert made[: len(prompt)] == prompt


def test_the_middle_is_counted(tokenizer: Tokenizer) -> None:
    for seed in range(50):
        ids, middle = infill.transform(tokenizer, STORY, is_code=False, draw=random.Random(seed))
        assert ids[-1] == special_ids(tokenizer)[END_OF_TEXT]
        assert tokenizer.decode(ids[-middle:]) in STORY
