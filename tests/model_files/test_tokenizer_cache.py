"""Tokenizers of model files are built once, and are right whatever happens to the cache."""

from __future__ import annotations

import errno
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tokenizer import TokenizerFiles, tokenizer_files
from onward.model_files import tokenizer_cache
from onward.model_files.tokenizer import HuggingFaceTokenizer
from onward.model_files.tokenizer_cache import FOLDER, MAX_FILES, cached_tokenizer
from tests.checkpoints.making import letters_tokenizer
from tests.checkpoints.test_tokenizer import SENTENCE_PIECE

_TOKENS = letters_tokenizer()["tokenizer.ggml.tokens"]
REPEATED = {
    "tokenizer.ggml.tokens": [*_TOKENS, "ab", "<ä>", "<|end|>"],
    "tokenizer.ggml.token_type": [*letters_tokenizer()["tokenizer.ggml.token_type"], 1, 4, 3],
}
"""Tokens whose text is another's, or not written as the others'."""


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[TokenizerFiles]:
    """Every tokenizer that is built, in order."""
    found: list[TokenizerFiles] = []

    def build(parameters: Parameters) -> TokenizerFiles:
        found.append(tokenizer_files(parameters))
        return found[-1]

    monkeypatch.setattr(tokenizer_cache, "tokenizer_files", build)
    return found


def parameters(**changes: Any) -> Parameters:
    return Parameters({"general.architecture": "llama", **letters_tokenizer(), **changes}, "m.gguf")


def cached(stated: Parameters, cache_dir: Path | None) -> HuggingFaceTokenizer:
    return cached_tokenizer(Path("m.gguf"), stated, cache_dir)


def facts(tokenizer: HuggingFaceTokenizer) -> tuple[object, ...]:
    """Everything that differs between the tokenizers of these tests."""
    own = {name: value for name, value in vars(tokenizer).items() if name not in ("_library", "packed", "_own_encode")}
    return own, tokenizer.packed.encode(), tokenizer.encode("abcab <|end|>ä", add_special_tokens=True)


def test_a_tokenizer_is_built_once_per_metadata(tmp_path: Path, built: list[TokenizerFiles]) -> None:
    first = facts(cached(parameters(), tmp_path))
    renamed = parameters(**{"general.name": "another name"})
    assert facts(cached(renamed, tmp_path)) == first
    assert len(built) == 1
    other = cached(parameters(**{"tokenizer.ggml.bos_token_id": 0}), tmp_path)
    assert len(built) == 2 and facts(other) != first


@pytest.mark.parametrize("stated", [SENTENCE_PIECE, REPEATED], ids=["SentencePiece", "a text twice"])
def test_a_tokenizer_that_is_read_is_the_one_that_was_built(
    stated: dict[str, Any], tmp_path: Path, built: list[TokenizerFiles]
) -> None:
    first, read = (facts(cached(parameters(**stated), tmp_path)) for _ in range(2))
    assert len(built) == 1 and read == first
    plain = cached(parameters(**stated), None)
    assert facts(plain) == first


def test_a_tokenizer_that_is_read_asks_the_library_for_no_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = facts(cached(parameters(), tmp_path))
    monkeypatch.setattr(HuggingFaceTokenizer, "_read_vocabulary", None)
    assert facts(cached(parameters(), tmp_path)) == first


def test_arrays_of_any_size_are_not_copied(tmp_path: Path, built: list[TokenizerFiles]) -> None:
    numbers = np.zeros(20_000_000, "<f4")
    tracemalloc.start()
    for value in (0.0, 1.0):
        numbers[-1] = value
        cached(parameters(**{"tokenizer.ggml.scores": numbers}), tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(built) == 2 and peak < numbers.nbytes / 10


@pytest.mark.parametrize("content", [b"", b"short", bytes(1000)])
def test_a_damaged_file_is_built_again(tmp_path: Path, built: list[TokenizerFiles], content: bytes) -> None:
    first = facts(cached(parameters(), tmp_path))
    [kept] = (tmp_path / FOLDER).iterdir()
    whole = kept.read_bytes()
    for damage in (content, whole[:-1], whole + b"x"):
        kept.write_bytes(damage)
        assert facts(cached(parameters(), tmp_path)) == first
        assert kept.read_bytes() == whole
    assert len(built) == 4


def test_what_is_built_while_its_file_is_written_to_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata are views of the file, which may be restored after it was overwritten."""

    def overwritten(stated: Parameters) -> TokenizerFiles:
        changed = Parameters({**stated.metadata, "tokenizer.ggml.bos_token_id": 0}, stated.where)
        stated.metadata = changed.metadata
        return tokenizer_files(changed)

    expected = facts(cached(parameters(), None))
    with monkeypatch.context() as patch:
        patch.setattr(tokenizer_cache, "tokenizer_files", overwritten)
        assert facts(cached(parameters(), tmp_path)) != expected
    assert facts(cached(parameters(), tmp_path)) == expected


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    cached(parameters(), tmp_path)
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_without_a_folder_that_can_be_written_nothing_is_kept(tmp_path: Path, built: list[TokenizerFiles]) -> None:
    (tmp_path / "file").touch()
    assert facts(cached(parameters(), None)) == facts(cached(parameters(), tmp_path / "file"))
    assert len(built) == 2


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 3):
        cached(parameters(**{"tokenizer.test": number}), tmp_path)
    assert len(list((tmp_path / FOLDER).iterdir())) == MAX_FILES
