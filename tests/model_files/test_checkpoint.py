"""The files of a checkpoint are read once per start."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.checkpoints import read as module
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.read import read_checkpoint
from onward.compose import compose
from onward.model_files.gguf import GGUFFiles
from onward.models.resolve import built_in_folder, resolve
from onward.settings import Settings


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that are read, in order."""
    found: list[Path] = []

    def reading(path: Path) -> Checkpoint:
        found.append(path)
        return read_checkpoint(path)

    monkeypatch.setattr(module, "read_checkpoint", reading)
    return found


def test_questions_read_the_files_once_until_they_are_released(read: list[Path], tmp_path: Path) -> None:
    files = GGUFFiles(built_in_folder("storyteller"))
    for _ in range(2):
        assert files.problems() == [] and files.notes() == files.notes()
        assert files.load_tokenizer(tmp_path).size == files.facts()["vocabulary"]
        files.release()
        files.release()
    assert read == [files.checkpoint_path] * 2


def test_what_is_wrong_is_found_each_time_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    files = GGUFFiles(tmp_path / "m.gguf")
    assert len(files.problems()) == 1 and files.problems() == files.problems()


@pytest.mark.slow
def test_a_model_that_is_served_keeps_nothing_of_what_its_start_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = resolve("storyteller", cache_dir=tmp_path)
    monkeypatch.setattr("onward.compose.upstreams.resolve", lambda name, **options: found)
    assert "_checkpoint" in vars(found.files)
    backend = compose(Settings(model=("storyteller",), cache_dir=tmp_path))
    try:
        assert not {"_checkpoint", "_tokenizer_notes"} & vars(found.files).keys()
    finally:
        backend.close()
