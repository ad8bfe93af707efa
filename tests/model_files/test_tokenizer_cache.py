"""Tokenizers of model files are built once, and whatever happens to the cache, they are right."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tokenizer import TokenizerFiles, tokenizer_files
from onward.model_files import tokenizer_cache
from onward.model_files.tokenizer_cache import FOLDER, MAX_FILES, cached_tokenizer_files
from tests.checkpoints.making import letters_tokenizer


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


def test_a_tokenizer_is_built_once_per_metadata(tmp_path: Path, built: list[TokenizerFiles]) -> None:
    first = cached_tokenizer_files(parameters(), tmp_path)
    renamed = parameters(**{"general.name": "another name"})
    assert cached_tokenizer_files(renamed, tmp_path) == first == built[0]
    assert len(built) == 1
    other = cached_tokenizer_files(parameters(**{"tokenizer.ggml.bos_token_id": 0}), tmp_path)
    assert other == built[1] != first


def test_arrays_of_any_size_are_not_copied(tmp_path: Path, built: list[TokenizerFiles]) -> None:
    numbers = np.zeros(20_000_000, "<f4")
    tracemalloc.start()
    for value in (0.0, 1.0):
        numbers[-1] = value
        cached_tokenizer_files(parameters(**{"tokenizer.ggml.scores": numbers}), tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(built) == 2 and peak < numbers.nbytes / 10


@pytest.mark.parametrize("content", [b"", b"short", bytes(1000)])
def test_a_damaged_file_is_built_again(tmp_path: Path, built: list[TokenizerFiles], content: bytes) -> None:
    first = cached_tokenizer_files(parameters(), tmp_path)
    [kept] = (tmp_path / FOLDER).iterdir()
    whole = kept.read_bytes()
    for damage in (content, whole[:-1], whole + b"x"):
        kept.write_bytes(damage)
        assert cached_tokenizer_files(parameters(), tmp_path) == first
        assert kept.read_bytes() == whole
    assert len(built) == 4


def test_without_a_folder_that_can_be_written_nothing_is_kept(tmp_path: Path, built: list[TokenizerFiles]) -> None:
    (tmp_path / "file").touch()
    for cache_dir in (None, tmp_path / "file"):
        assert cached_tokenizer_files(parameters(), cache_dir) == tokenizer_files(parameters())
    assert len(built) == 2


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 3):
        cached_tokenizer_files(parameters(**{"tokenizer.test": number}), tmp_path)
    assert len(list((tmp_path / FOLDER).iterdir())) == MAX_FILES
