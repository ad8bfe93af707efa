"""`onward serve`: models as arguments."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import pytest

from onward.settings import Settings

from ...processes import served
from ..conftest import onward


@pytest.fixture
def served_settings(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings of each server that was to start, without the process of its engine."""
    started: list[Settings] = []

    def serve(settings: Settings, _: Any, *, announcement: str | None, open_team: Any, **__: Any) -> int:
        assert open_team(settings) is None, "no database without its flags"
        started.append(settings)
        click.echo(announcement)
        return 0

    monkeypatch.setattr("onward.server.run.serve", serve)
    monkeypatch.setattr("onward.compose.spare.spare_process", lambda _: nullcontext())
    return started


@pytest.mark.parametrize(
    ("arguments", "models"),
    [
        ((), ("storyteller",)),
        (("toy",), ("toy",)),
        (("toy", "--port", "0", "storyteller"), ("toy", "storyteller")),
        (("--model", "toy", "storyteller"), ("storyteller", "toy")),
        (("--model", "a", "b", "-m", "c", "d"), ("b", "d", "a", "c")),
    ],
    ids=str,
)
def test_models_are_arguments_too(
    arguments: tuple[str, ...], models: tuple[str, ...], served_settings: list[Settings]
) -> None:
    assert onward("serve", *arguments).exit_code == 0
    assert [settings.model for settings in served_settings] == [models]


def test_an_argument_overrides_the_environment(
    served_settings: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONWARD_MODEL", "a,b")
    assert onward("serve", "toy").exit_code == 0
    assert served_settings[0].model == ("toy",)


def test_an_empty_name_is_a_usage_error() -> None:
    result = onward("serve", "")
    assert result.exit_code == 2
    assert "--model" in result.stderr


def test_the_help_shows_the_argument() -> None:
    shown = " ".join(onward("serve", "--help").stdout.split())
    assert "onward serve [OPTIONS] [NAME_OR_PATH]..." in shown
    assert shown.count("Models to serve, in addition to those of --model and before them.") == 1


@pytest.mark.slow
def test_a_server_of_an_argument_starts() -> None:
    with served("toy", model="storyteller") as url:
        assert url.startswith("http://127.0.0.1:")


def test_a_settings_file_of_the_folder_is_used_but_for_folders_and_announced(served_settings: list[Settings]) -> None:
    Path("onward.toml").write_text('model = ["org/name"]\ncache_dir = "/elsewhere"\n', encoding="utf-8")
    result = onward("serve", "--port", "0")
    assert "Using onward.toml of this folder for model (not for cache_dir: pass --config" in result.stdout
    assert (served_settings[0].model, served_settings[0].cache_dir) == (("org/name",), Settings().cache_dir)
    assert onward("serve", "--config", "onward.toml").stdout == "\n"
    assert str(served_settings[1].cache_dir) == "/elsewhere"
