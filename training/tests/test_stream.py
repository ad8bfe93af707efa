"""Rows are full, infilling examples are never split, and the stream continues where it stopped."""

from __future__ import annotations

import random

import numpy as np
from tokenizers import Tokenizer

from training.chunks import chunk_text
from training.corpus import Source
from training.presets import Stage
from training.stream import IGNORED_LABEL, MIDDLE_WEIGHT, RowStream, encode_with_seams
from training.tests.conftest import STORY
from training.tokenizer import END_OF_TEXT, FIM_MIDDLE, FIM_PAD, FIM_PREFIX, special_ids

STAGE = Stage(1.0, 256, {"tinystories": 0.6, "python_stdlib": 0.4})


def stream(sources: dict[str, Source], tokenizer: Tokenizer) -> RowStream:
    return RowStream(sources, tokenizer, STAGE, 0, seed=7)


def test_rows_have_the_length_of_the_stage(sources: dict, tokenizer: Tokenizer) -> None:
    inputs, labels, _ = stream(sources, tokenizer).rows(8)
    assert inputs.shape == labels.shape == (8, 256)
    assert (inputs[:, 1:] == labels[:, :-1])[labels[:, :-1] != IGNORED_LABEL].all()


def test_infilling_examples_are_never_split(sources: dict, tokenizer: Tokenizer) -> None:
    ids = special_ids(tokenizer)
    inputs, labels, _ = stream(sources, tokenizer).rows(64)
    for row in np.concatenate([inputs, labels[:, -1:]], axis=1):
        for start in np.flatnonzero(row == ids[FIM_PREFIX]):
            rest = row[start:].tolist()
            assert ids[END_OF_TEXT] in rest[rest.index(ids[FIM_MIDDLE]) :]


def test_infilling_markers_are_never_predicted(sources: dict, tokenizer: Tokenizer) -> None:
    ids = special_ids(tokenizer)
    inputs, labels, _ = stream(sources, tokenizer).rows(32)
    assert (inputs == ids[FIM_MIDDLE]).any()
    assert not np.isin(labels, [ids[FIM_PREFIX], ids[FIM_MIDDLE], ids[FIM_PAD]]).any()


def test_middles_have_a_higher_weight(sources: dict, tokenizer: Tokenizer) -> None:
    ids = special_ids(tokenizer)
    inputs, labels, weights = stream(sources, tokenizer).rows(32)
    assert set(np.unique(weights)) == {1.0, MIDDLE_WEIGHT}
    ends = labels == ids[END_OF_TEXT]
    assert (weights[ends] == MIDDLE_WEIGHT).any()
    assert (weights[ends] == 1.0).any()
    assert ((inputs == ids[FIM_MIDDLE]) & (weights == MIDDLE_WEIGHT)).any()


def test_there_is_little_padding(sources: dict, tokenizer: Tokenizer) -> None:
    inputs, _, _ = stream(sources, tokenizer).rows(200)
    assert (inputs == special_ids(tokenizer)[FIM_PAD]).mean() < 0.01


def test_shares_are_kept(sources: dict, tokenizer: Tokenizer) -> None:
    rows = stream(sources, tokenizer)
    rows.rows(100)
    served = rows.served()
    assert abs(served["tinystories"] / sum(served.values()) - 0.6) < 0.02


def test_the_stream_continues_where_it_stopped(sources: dict, tokenizer: Tokenizer) -> None:
    unbroken = stream(sources, tokenizer)
    unbroken.rows(13)
    state = unbroken.state()
    expected = unbroken.rows(40)
    again = stream(sources, tokenizer)
    again.restore(state)
    assert all((a == b).all() for a, b in zip(again.rows(40), expected, strict=True))


def test_chunks_contain_all_text_within_the_limit() -> None:
    text = "\n\n".join("word " * n for n in (3, 50, 400, 1)).strip()
    chunks = chunk_text(text, 200, "\n\n")
    assert max(map(len, chunks)) <= 200
    assert "".join(chunks).replace("\n", "") == text.replace("\n", "")


def test_seams_keep_the_text(tokenizer: Tokenizer) -> None:
    for text in (STORY, "x", "no_blank", " "):
        for seed in range(20):
            ids = encode_with_seams(tokenizer, text, random.Random(seed))
            assert tokenizer.decode(ids) == text
