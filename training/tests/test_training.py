"""A killed run continues without a difference, and invalid input has a clear error message."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from training.checkpoint import RunFolder, load_checkpoint
from training.corpus import check_data_folder
from training.errors import RecipeError
from training.files import replace_file, replace_text
from training.loop import Trainer
from training.presets import ModelShape, Preset, Stage
from training.schedule import Clock

SHAPE = ModelShape(hidden=64, layers=1, heads=1, kv_heads=1, feed_forward=64, vocabulary=8192)
PRESET = Preset(
    name="test",
    shape=SHAPE,
    tokens=6 * 1024,
    tokens_per_step=1024,
    tokens_per_microbatch=512,
    warmup_steps=2,
    stages=(Stage(0.5, 128, {"tinystories": 1.0}), Stage(1.0, 256, {"tinystories": 0.5, "python_stdlib": 0.5})),
)


def trainer(folder: Path, sources: dict, tokenizer: Tokenizer, preset: Preset = PRESET) -> Trainer:
    return Trainer(preset, RunFolder(folder), sources, tokenizer, compiled=False, device="cpu")


def run_steps(trainer_: Trainer, count: int) -> None:
    for _ in range(count):
        trainer_._enter_stage()
        trainer_._timed_step()


def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path, sources: dict, tokenizer: Tokenizer) -> None:
    torch.set_num_threads(1)
    whole = trainer(tmp_path / "whole", sources, tokenizer)
    run_steps(whole, 6)
    broken = trainer(tmp_path / "broken", sources, tokenizer)
    run_steps(broken, 2)
    broken.save()
    run_steps(broken, 1)  # lost in the kill
    resumed = trainer(tmp_path / "broken", sources, tokenizer)
    assert resumed.clock.steps == 2
    run_steps(resumed, 4)
    for name, weight in whole.optimizer.masters.items():
        assert torch.equal(weight, resumed.optimizer.masters[name]), name
    assert [row[:2] for row in whole.history["train"]] == [row[:2] for row in resumed.history["train"]]


def test_a_run_ends_and_leaves_a_checkpoint(tmp_path: Path, sources: dict, tokenizer: Tokenizer) -> None:
    finished = trainer(tmp_path, sources, tokenizer)
    finished.run()
    state = load_checkpoint(finished.folder)
    assert state["clock"]["tokens"] == PRESET.tokens
    assert finished.history["valid"]


def test_other_settings_are_refused(tmp_path: Path) -> None:
    RunFolder(tmp_path).claim(PRESET)
    RunFolder(tmp_path).claim(replace(PRESET, tokens=1))
    with pytest.raises(RecipeError, match="other settings"):
        RunFolder(tmp_path).claim(replace(PRESET, seed=2))


def test_a_missing_data_folder_has_an_error_message(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "nowhere", tmp_path):
        with pytest.raises(RecipeError, match=r"text/tinystories.jsonl.xz"):
            check_data_folder(folder)


def test_a_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    replace_text(path, "old")

    def fail(part: Path) -> None:
        part.write_text("half", encoding="utf-8")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RecipeError, match="disk is full"):
        replace_file(path, fail)
    assert path.read_text(encoding="utf-8") == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]


def test_a_damaged_checkpoint_has_an_error_message(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.checkpoint.write_bytes(b"not a checkpoint")
    with pytest.raises(RecipeError, match="damaged"):
        load_checkpoint(folder)


def test_a_suspension_costs_no_training_time() -> None:
    clock = Clock(replace(PRESET, tokens=None, minutes=10.0))
    for _ in range(20):
        clock.count(1.0, 10)
    clock.count(3_600.0, 10)
    assert clock.seconds < 30


def test_the_learning_rate_warms_up_and_decays() -> None:
    clock = Clock(PRESET)
    assert clock.learning_rate_scale == 0.5
    clock.steps = 100
    assert clock.learning_rate_scale == 1.0
    clock.tokens = PRESET.tokens
    assert clock.learning_rate_scale == pytest.approx(PRESET.final_learning_rate)
