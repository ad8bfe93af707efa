"""Tokenizers from the metadata of GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from onward.checkpoints.parameters import Parameters
from onward.checkpoints.pretokenizers import PRE_TOKENIZERS
from onward.checkpoints.tokenizer import merges_of_scores, tokenizer_files
from onward.errors import CheckpointError
from onward.model_files.tokenizer import HuggingFaceTokenizer, TokenizerContent
from tests.checkpoints.making import letters_tokenizer
from tests.models.tokenizer_files import merged_lines
from tests.tables import each_row

ARCHITECTURE = {"general.architecture": "llama"}
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "ab", "▁a", "▁ab", "<tool>"]
SENTENCE_PIECE: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 1, 4],
    "tokenizer.ggml.scores": [0.0] * 259 + [-9.0, -8.0, -7.0, -1.0, -2.0, -0.5, 0.0],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
}


def tokenizer(metadata: dict[str, Any]) -> HuggingFaceTokenizer:
    files = tokenizer_files(Parameters({**ARCHITECTURE, **metadata}, "m.gguf"))
    content = TokenizerContent(Path("m.gguf"), files.tokenizer, files.configuration, [files.generation])
    return HuggingFaceTokenizer(content)


def pieces(found: HuggingFaceTokenizer, text: str, *, special: bool = False) -> list[bytes]:
    return [found.token_bytes(token) for token in found.encode(text, add_special_tokens=special)]


def test_a_byte_level_tokenizer_merges_as_stated() -> None:
    found = tokenizer(letters_tokenizer())
    assert pieces(found, "abcab ba") == [b"abc", b"ab", b" ", b"b", b"a"]
    assert pieces(found, "a<|end|>") == [b"a", b"<|end|>"]
    assert found.end_tokens == {found.token_id("<|end|>")}
    assert found.implicit_prefix(add_special_tokens=True) == 0


def test_a_sentence_piece_tokenizer_merges_by_score_and_falls_back_to_bytes() -> None:
    found = tokenizer(SENTENCE_PIECE)
    assert pieces(found, "ab") == [b" ab"]
    assert pieces(found, "ab", special=True) == [b"<s>", b" ab"]
    assert pieces(found, "aä") == [b" a", "ä".encode()[:1], "ä".encode()[1:]]
    assert pieces(found, "b<tool>") == [b" ", b"b", b"<tool>"]
    assert found.end_tokens == {2} and found.is_special(1) and not found.is_special(len(PIECES) - 1)


def test_lines_are_merged_as_stated_and_runs_of_line_breaks_are_their_token() -> None:
    found = tokenizer(merged_lines(add_bos_token=False))
    assert pieces(found, "hello hell\nhe") == [b"hello", b" he", b"ll", b"\n", b"he"]
    assert pieces(found, "h\n\n\n\u00e9") == [b"h", b"\n" * 3, b"\xc3", b"\xa9"]
    assert pieces(found, "he", special=True) == [b"<bos>", b"he"]
    assert found.end_tokens == {1}


def test_infill_tokens_are_those_that_the_file_states() -> None:
    assert tokenizer(letters_tokenizer()).infill_tokens == {}
    older = {
        "tokenizer.ggml.prefix_token_id": 3,
        "tokenizer.ggml.suffix_token_id": 4,
        "tokenizer.ggml.middle_token_id": 5,
    }
    found = tokenizer({**letters_tokenizer(), **older, "tokenizer.ggml.fim_mid_token_id": 6})
    assert found.infill_tokens == {"prefix": 3, "suffix": 4, "middle": 6}
    assert tokenizer({**letters_tokenizer(), "tokenizer.ggml.fim_pad_token_id": 99}).infill_tokens == {}


def test_the_space_before_a_text_and_the_start_token_are_switches_of_the_file() -> None:
    switches = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    found = tokenizer({**SENTENCE_PIECE, **switches})
    assert pieces(found, "ab", special=True) == [b"ab"]
    with_start = tokenizer(
        {**letters_tokenizer(), "tokenizer.ggml.bos_token_id": 29, "tokenizer.ggml.add_bos_token": True}
    )
    assert pieces(with_start, "a", special=True) == [b"<|end|>", b"a"]


def test_every_end_of_turn_token_ends_a_text() -> None:
    found = tokenizer({**letters_tokenizer(), "tokenizer.ggml.eot_token_id": 3})
    assert found.end_tokens == {3, found.token_id("<|end|>")}


@each_row("name", sorted(PRE_TOKENIZERS))
def test_every_rule_cuts_text_and_loses_none(name: str) -> None:
    letters = letters_tokenizer()
    letters["tokenizer.ggml.pre"] = name
    text = "abc cab\n bc  a"
    everything = tokenizer(_with_all_bytes(letters))
    assert b"".join(pieces(everything, text)) == text.encode()


def test_kimi_cuts_han_apart_and_small_letters_from_capitals() -> None:
    """As tokenization_kimi.py does; llama.cpp's code for it cuts neither before a capital nor where a mark is."""
    [pattern] = PRE_TOKENIZERS["kimi-k2"].patterns
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    for words in (
        ["Ab", "Cd", " a", "Bc"], ["你好", "，", "世界", " ", "日本", "Ab"], ["漢字", "かな", "交", "じり"],
        ["I'm", " HERE", ",", " isn't", " ", " it", "?\n\n", " ", " x"], ["a\u0301b", "C", "1", "\r\n"],
        ["123", "4", " a", "!!"],
    ):  # fmt: skip
        assert [word for word, _ in split.pre_tokenize_str("".join(words))] == words


def test_trinity_cuts_digits_in_threes_from_their_end() -> None:
    """As llama.cpp's code for its rule does, which no expression of llama.cpp's can say."""
    rules = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS["afmoe"].patterns]
    split = pre_tokenizers.Sequence(rules)
    for words in (
        ["ab", "1", "234", "567", " x"], ["12", "345"], ["123", "456"], ["x", "12", "."], ["7"],
        [" ", "1", "000", " a"], ["1", "234", ".", "56", "-", "789"], ["漢字", "12", "ア", "b"],
        ["ก", "12", "345", "x"],
    ):  # fmt: skip
        assert [word for word, _ in split.pre_tokenize_str("".join(words))] == words


@given(st.text(st.sampled_from("1234567 ab_.,\n\u0301²٣漢"), max_size=24))
def test_north_cuts_digits_up_to_the_end_of_a_word_in_threes(text: str) -> None:
    """As by the expression of its tokenizer.json, which looks through a long run once for each of its digits."""
    *_, last = PRE_TOKENIZERS["cohere2moe"].patterns
    rules = PRE_TOKENIZERS["cohere2moe"].patterns, (r"\d{1,3}(?=(?:\d{3})*\b)", last)
    ours, theirs = (
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns])
        for patterns in rules
    )
    assert ours.pre_tokenize_str(text) == theirs.pre_tokenize_str(text)


def _with_all_bytes(metadata: dict[str, Any]) -> dict[str, Any]:
    known = metadata["tokenizer.ggml.tokens"]
    missing = [token for token in ("Ċ",) if token not in known]
    kinds = metadata["tokenizer.ggml.token_type"] + [1] * len(missing)
    return {**metadata, "tokenizer.ggml.tokens": known + missing, "tokenizer.ggml.token_type": kinds}


def test_merges_follow_scores_then_ids() -> None:
    tokens = ["a", "b", "ab", "ba", "aba"]
    assert merges_of_scores(tokens, [1] * 5, [0.0, 0.0, 2.0, 1.0, 1.0]).pairs == [
        ["a", "b"], ["a", "ba"], ["b", "a"], ["ab", "a"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tokenizer.ggml.pre": "martian"}, "'martian'.*qwen2"),
        ({"tokenizer.ggml.model": "rwkv"}, "'rwkv', which Onward cannot build"),
        ({"tokenizer.ggml.model": 5}, "states '5'"),
        ({"tokenizer.ggml.tokens": []}, "no tokens"),
        ({"tokenizer.ggml.token_type": [1]}, "has 1 entries of 'tokenizer.ggml.token_type' instead of 30"),
        ({"tokenizer.ggml.merges": ["a z", "x"]}, "which are not tokens"),
        ({"tokenizer.ggml.eos_token_id": "end"}, "which is not an id"),
        ({"tokenizer.ggml.add_bos_token": 1}, "where true or false is needed"),
        ({"tokenizer.ggml.merges": []}, "no merges"),
        ({"tokenizer.ggml.suppress_tokens": ["a"]}, "a list of something else.*suppress_tokens"),
        ({"tokenizer.ggml.suppress_tokens": np.arange(40)}, "suppresses all of its tokens"),
        ({"tokenizer.ggml.model": "llama"}, "no scores"),
        ({"tokenizer.ggml.tokens": ["a" * 140_000] * 30}, "longer tokens than any model needs"),
        (merged_lines([("\n" * 9, 1)]), "a token of 9 line breaks, but none of 4"),
        (merged_lines([("\n" * 65, 1)]), "a token of 65 line breaks, more than any model's"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_is_reported_in_one_message(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        tokenizer({**letters_tokenizer(), **changed})
