"""`tokenizer.model` files: the tokens that a GGUF file of the same pieces makes, and a clear error for each broken
file."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.checkpoints.sentencepiece import read_sentence_piece
from onward.errors import CheckpointError, ModelFolderError
from onward.model_files.openvino_ir import OpenVINOFiles
from onward.model_files.safetensors import SafetensorsFiles
from onward.model_files.tokenizer import HuggingFaceTokenizer
from onward.model_files.tokenizer_folder import made_tokenizer_problem
from tests.checkpoints.making import FUZZ, with_bytes
from tests.checkpoints.test_tokenizer import PIECES, SENTENCE_PIECE, tokenizer

TEXTS = ["ab", " ab", "a b  ab", "aä🙂", "b<tool>", "", "a\n\tb", "<s>ab</s>"]
BPE = {3: 2, 35: 1, 40: 0, 41: 1, 42: 2, 43: -1}
"""Of TrainerSpec, by field: BPE, bytes for what is unknown, and the special tokens of SENTENCE_PIECE; no padding."""
PLAIN = {3: 1, 4: 0, 5: 1}
"""Of NormalizerSpec: a space before a text, spaces are kept, and written as ▁."""


def number(value: int) -> bytes:
    """A variable-length number; a negative one in ten bytes."""
    value &= (1 << 64) - 1
    digits = b""
    while value > 127:
        digits += bytes([value & 127 | 128])
        value >>= 7
    return digits + bytes([value])


def message(fields: list[tuple[int, int | float | bytes]]) -> bytes:
    """A message of Protocol Buffers."""
    content = b""
    for field, value in fields:
        if isinstance(value, bytes):
            content += number(field << 3 | 2) + number(len(value)) + value
        elif isinstance(value, float):
            content += number(field << 3 | 5) + struct.pack("<f", value)
        else:
            content += number(field << 3) + number(value)
    return content


def model_bytes(trainer: dict[int, Any] = BPE, normalizer: dict[int, Any] = PLAIN) -> bytes:
    """A `tokenizer.model` with the pieces of SENTENCE_PIECE. As usual, normal pieces do not state their type."""
    names = ("tokens", "scores", "token_type")
    rows = zip(*(SENTENCE_PIECE[f"tokenizer.ggml.{name}"] for name in names), strict=True)
    pieces = [
        message([(1, text.encode()), (2, score), *([] if kind == 1 else [(3, kind)])]) for text, score, kind in rows
    ]
    specs = [(2, message(list(trainer.items()))), (3, message(list(normalizer.items()))), (4, b"self test")]
    return message([*((1, piece) for piece in pieces), *specs])


MODEL = model_bytes()


def folder(path: Path, content: bytes = MODEL, **files: object) -> Path:
    (path / "tokenizer.model").write_bytes(content)
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return path


def test_token_ids_are_those_of_a_gguf_file_with_the_same_pieces(tmp_path: Path) -> None:
    found, expected = HuggingFaceTokenizer(folder(tmp_path)), tokenizer(SENTENCE_PIECE)
    for text in TEXTS:
        for special in (False, True):
            assert found.encode(text, add_special_tokens=special) == expected.encode(text, add_special_tokens=special)
    assert found.size == len(PIECES) and found.end_tokens == {2} and found.bos_token == "<s>"


def test_the_configuration_adds_tokens_and_decides_about_the_start_token(tmp_path: Path) -> None:
    size = len(PIECES)
    configuration = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": False,
        "bos_token": "<s>",
        "eos_token": {"content": "<|im_end|>"},
        "added_tokens_decoder": {
            str(size): {"content": "<|im_end|>", "special": True},
            "0": {"content": "<unk>", "special": True},
        },
    }
    made = folder(tmp_path, tokenizer_config=configuration, added_tokens={"<more>": size + 1, "<s>": 1})
    found = HuggingFaceTokenizer(made)
    assert found.encode("ab<more><|im_end|>", add_special_tokens=True)[-2:] == [size + 1, size]
    assert found.implicit_prefix(add_special_tokens=True) == 0
    assert size in found.end_tokens and found.is_special(size) and not found.is_special(size + 1)
    assert found.is_special(0)
    assert made_tokenizer_problem(made) is None


@pytest.mark.parametrize(
    ("configuration", "is_recognised"),
    [
        ({}, False),
        ({"tokenizer_class": "LlamaTokenizer"}, True),
        ({"tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>"}, True),
        ({"tokenizer_class": "LlamaTokenizer", "unk_token": "<s>"}, False),
    ],
)
def test_the_unknown_token_is_recognised_where_a_class_of_transformers_names_it(
    configuration: dict[str, Any], is_recognised: bool, tmp_path: Path
) -> None:
    """SentencePiece itself treats it as text."""
    found = HuggingFaceTokenizer(folder(tmp_path, tokenizer_config=configuration))
    assert (found.encode("<unk>", add_special_tokens=False) == [0]) == is_recognised


def test_a_text_gets_no_space_in_front_where_the_file_says_so(tmp_path: Path) -> None:
    found = HuggingFaceTokenizer(folder(tmp_path, model_bytes(normalizer={**PLAIN, 3: 0})))
    expected = tokenizer({**SENTENCE_PIECE, "tokenizer.ggml.add_space_prefix": False})
    assert all(
        found.encode(text, add_special_tokens=False) == expected.encode(text, add_special_tokens=False)
        for text in TEXTS
    )


def test_tokenizer_json_comes_first(tmp_path: Path) -> None:
    folder(tmp_path, tokenizer={})
    with pytest.raises(ModelFolderError, match=r"tokenizer.json is not a valid tokenizer"):
        HuggingFaceTokenizer(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it has no tokens"),
        (b"\xff" * 40, "a number does not end"),
        (b"\x0b", "unknown kind 3"),
        (MODEL[:-1], "cut off"),
        (message([(1, message([(1, b"\xff"), (2, 0.0)]))]), "not a SentencePiece model"),
        (message([(1, message([(1, b"a"), (2, b"score")]))]), "not a SentencePiece model"),
        (message([(1, message([(1, b"a"), (2, float("nan"))]))]), "score is not a number"),
        (message([(1, message([(1, b"a"), (3, 9)]))]), "kind 9"),
        (model_bytes({**BPE, 3: 3}), "by words.*by BPE or unigram.*save_pretrained"),
        (model_bytes({**BPE, 3: 4}), "by characters"),
        (MODEL + message([(5, message([(2, b"map")]))]), "rewrites the text of tokens"),
        (model_bytes({**BPE, 24: 1}), "after words"),
        (model_bytes(normalizer={**PLAIN, 2: b"map"}), "rules of normalisation that are cut off"),
        (model_bytes(normalizer={**PLAIN, 5: 0}), "leaves spaces"),
    ],
)
def test_what_cannot_be_read_exactly_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    made = folder(tmp_path, content)
    with pytest.raises(CheckpointError, match=words):
        HuggingFaceTokenizer(made)
    for kind in (SafetensorsFiles, OpenVINOFiles):
        assert any("tokenizer.model" in problem for problem in kind(made).problems())


@pytest.mark.parametrize("added", [{"<gap>": len(PIECES) + 1}, {"<other>": 5}])
def test_tokens_that_do_not_fit_the_file_are_refused(added: dict[str, int], tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="adds the token"):
        HuggingFaceTokenizer(folder(tmp_path, added_tokens=added))


@FUZZ
@given(st.dictionaries(st.integers(0, len(MODEL) - 1), st.integers(0, 255), max_size=8), st.integers(0, len(MODEL)))
def test_a_damaged_file_is_read_or_refused(changes: dict[int, int], end: int) -> None:
    try:
        found = read_sentence_piece(with_bytes(MODEL, changes)[:end], "tokenizer.model")
    except CheckpointError:
        return
    assert len(found.tokens) == len(found.scores) == len(found.kinds) <= len(PIECES)
