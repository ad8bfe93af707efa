"""A tokenizer that an export has changed is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onward.errors import ModelNameError
from onward.models.same_tokenizer import MAX_SHOWN, differences, tokenizer_of
from tests.cli.conftest import onward
from tests.models.story_folder import write_tokenizer


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """The files of a tokenizer next to weights that Onward cannot read."""
    folder = write_tokenizer(tmp_path / "original")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    return folder


def test_the_same_files_have_the_same_ids(original: Path, tmp_path: Path) -> None:
    own = tokenizer_of("storyteller", tmp_path)
    assert differences(own, tokenizer_of(str(original), tmp_path)) == []


def test_a_changed_tokenizer_is_recognised(original: Path, tmp_path: Path) -> None:
    path = original / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["normalizer"] = {"type": "Lowercase"}
    path.write_text(json.dumps(content), encoding="utf-8")
    found = differences(tokenizer_of(str(original), tmp_path), tokenizer_of("storyteller", tmp_path))
    assert found[0].startswith("The token ids of 'Hello' are [") and len(found) <= MAX_SHOWN
    assert differences(tokenizer_of("toy", tmp_path), tokenizer_of("storyteller", tmp_path))[-1].startswith(
        "The end tokens are ["
    )


@pytest.mark.parametrize("name", ["./nowhere", "~nobody-of-this-name/x", "x" * 5000])
def test_an_unknown_model_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNameError):
        tokenizer_of(name, tmp_path)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["qwen-coder"], "qwen-coder is not on this machine: fetch it with `onward pull qwen-coder`."),
        (["toy", "--base-url", "http://127.0.0.1:9/v1"], "--compare-tokenizer is for models on this machine"),
    ],
)
def test_where_nothing_can_be_compared_the_option_is_refused(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path))
    result = onward("models", "show", *arguments, "--compare-tokenizer", "toy")
    assert result.exit_code != 0 and not result.stdout and words in result.stderr


@pytest.mark.parametrize("name", ["", "toy"])
def test_the_command_lists_differences_and_ends_with_1(original: Path, name: str) -> None:
    result = onward("models", "show", "storyteller", "--compare-tokenizer", name or str(original), "--format", "json")
    assert bool(json.loads(result.stdout)["tokenizer_differences"]) == bool(result.exit_code) == bool(name)
