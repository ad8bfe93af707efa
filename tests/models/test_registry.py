"""The model names that clients see."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onward.models.registry import ListedModel, did_you_mean, listed_models, real_model_hint


def test_models_come_first_and_aliases_have_the_times_of_their_models() -> None:
    listed = listed_models({"storyteller": 5, "org/m": 7}, {"davinci-002": "org/m"}, {"babbage-002": "storyteller"}, {})
    assert listed == [
        ListedModel(id="storyteller", created=5, owned_by="onward"),
        ListedModel(id="org/m", created=7, owned_by="org"),
        ListedModel(id="davinci-002", created=7, owned_by="org", model="org/m"),
        ListedModel(id="babbage-002", created=5, owned_by="alias of storyteller", model="storyteller"),
    ]


def test_only_a_similar_name_is_suggested() -> None:
    assert did_you_mean("davinci-02", ["davinci-002", "storyteller"]) == " Did you mean 'davinci-002'?"
    assert did_you_mean("xyz", ["davinci-002", "storyteller"]) == ""


@pytest.mark.parametrize("on_path", ["this one", "another one", "none"])
def test_the_hint_names_the_program_as_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: str
) -> None:
    """`make serve` starts it by its path; it may not be on the PATH, or another one may be."""
    for folder in ("venv", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "onward").touch(mode=0o755)
    monkeypatch.setenv("PATH", {"this one": "venv", "another one": "other", "none": "missing"}[on_path])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["venv/onward", "serve"])
    assert real_model_hint().endswith(
        ": onward serve smollm2" if on_path == "this one" else ": venv/onward serve smollm2"
    )
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "venv/onward"), "serve"])
    assert str(tmp_path) not in real_model_hint(), "clients see it"
    monkeypatch.setattr(sys, "argv", ["pytest"])
    assert real_model_hint().endswith(": onward serve smollm2")
