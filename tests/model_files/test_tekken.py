"""tekken.json: the tokens of a text follow from its ranks by tiktoken's rule."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.checkpoints.pretokenizers import PRE_TOKENIZERS
from onward.errors import ModelFolderError
from onward.model_files.safetensors import SafetensorsFiles
from onward.model_files.tokenizer import HuggingFaceTokenizer

WORDS = [b" a", b"in", b"er", b"the", b" the", b"ab", b"abab", b"ba", b"\xc3\xa9", b"th", b" t", b" th", b"here", b"re"]
VOCABULARY = [*(bytes([byte]) for byte in range(256)), *WORDS]
SPECIALS = 6


def stated(**changed: Any) -> dict[str, Any]:
    pattern = PRE_TOKENIZERS["tekken"].patterns[0]
    size = len(VOCABULARY) + SPECIALS
    config = {"pattern": pattern, "default_vocab_size": size, "default_num_special_tokens": SPECIALS}
    names = [("<unk>", True), ("<s>", True), ("</s>", True), ("[INST]", True), ("<think>", False)]
    whole = {
        "config": config,
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
            for rank, token in enumerate([*VOCABULARY, b"beyond the vocabulary"])
        ],
        "special_tokens": [
            {"rank": rank, "token_str": text, "is_control": is_control} for rank, (text, is_control) in enumerate(names)
        ],
    }
    whole["config"] |= changed.pop("config", {})
    return whole | changed


def written(folder: Path, **changed: Any) -> Path:
    (folder / "tekken.json").write_text(json.dumps(stated(**changed)), encoding="utf-8")
    return folder


def by_rank(word: bytes, *, vocabulary: list[bytes] = VOCABULARY, first: int = SPECIALS) -> list[int]:
    """tiktoken's rule: of all neighbours, those whose union has the lowest rank are merged first, from the left."""
    ranks = {token: rank for rank, token in enumerate(vocabulary, first)}
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        unions = [(ranks[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not unions:
            return [ranks[part] for part in parts]
        at = min(unions)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(written(tmp_path_factory.mktemp("tekken")))


def test_a_text_is_cut_and_merged_by_rank(found: HuggingFaceTokenizer) -> None:
    words = ["there", " the", " inner", "Abab", " é", "7", "7", " [["]
    ids = found.encode("".join(words), add_special_tokens=False)
    assert ids == [token for word in words for token in by_rank(word.encode())]
    assert b"".join(found.token_bytes(token) for token in ids) == "".join(words).encode()


@given(text=st.text(st.sampled_from("abtherin"), min_size=1, max_size=24))
def test_a_word_has_the_tokens_of_its_ranks(text: str, found: HuggingFaceTokenizer) -> None:
    assert found.encode(text, add_special_tokens=False) == by_rank(text.encode())


def test_special_tokens_are_read_and_the_start_token_is_before_a_text(found: HuggingFaceTokenizer) -> None:
    assert found.encode("[INST]<think>a</s><SPECIAL_5>", add_special_tokens=True) == [1, 3, 4, *by_rank(b"a"), 2, 5]
    assert found.end_tokens == {2} and found.is_special(3) and not found.is_special(4)


def test_older_files_have_the_special_tokens_that_they_do_not_state(tmp_path: Path) -> None:
    size = len(VOCABULARY) + 30
    made = HuggingFaceTokenizer(
        written(tmp_path, special_tokens=None, config={"default_vocab_size": size, "default_num_special_tokens": 30})
    )
    assert made.encode("[SUFFIX][PREFIX]", add_special_tokens=False) == [16, 14]
    assert made.encode("a", add_special_tokens=False) == [VOCABULARY.index(b"a") + 30]


def _without(rank: int) -> list[dict[str, Any]]:
    return [each for each in stated()["vocab"] if each["rank"] != rank]


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "another rule": ({"config": {"pattern": r"\w+"}}, "cuts text by a rule"),
    "no sizes": ({"config": {"default_vocab_size": "many"}}, "not a vocabulary of Mistral's"),
    "a gap": ({"vocab": _without(99)}, "gaps in its ranks"),
    "too few": ({"config": {"default_vocab_size": 9999}}, "gaps in its ranks"),
    "a token twice": ({"vocab": [*_without(99), {"rank": 99, "token_bytes": "YQ=="}]}, "tokens twice"),
    "no bytes": ({"vocab": [*_without(99), {"rank": 99, "token_bytes": "~"}]}, "not written in base64"),
    "an empty token": ({"vocab": [*_without(99), {"rank": 99, "token_bytes": ""}]}, "gaps in its ranks"),
    "a gap in special tokens": ({"special_tokens": [{"rank": 5, "token_str": "<s>"}]}, "gaps in its special tokens"),
    "no end": ({"special_tokens": [{"rank": 0, "token_str": "<s>"}]}, "none for start or end"),
    "more special tokens than stated": ({"config": {"default_num_special_tokens": 2}}, "5 special tokens instead of 2"),
    "countless tokens": ({"config": {"default_vocab_size": 4_000_000}}, "states more tokens than any vocabulary"),
    "countless special tokens": (
        {"config": {"default_vocab_size": 4_000_000, "default_num_special_tokens": 3_999_999}},
        "states more tokens than any vocabulary",
    ),
    "a rank below zero": ({"special_tokens": [{"rank": -1, "token_str": "<s>"}]}, "gaps in its special tokens"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_reported_in_one_message(name: str, tmp_path: Path) -> None:
    changed, words = BROKEN[name]
    with pytest.raises(ModelFolderError, match=words):
        HuggingFaceTokenizer(written(tmp_path, **changed))
    assert any(words in problem for problem in SafetensorsFiles(tmp_path).problems())
