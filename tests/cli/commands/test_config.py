"""`onward config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onward.settings import options

from ..conftest import onward


def test_config_shows_each_value_and_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onward.toml").write_text('port = 9000\nalias = ["a=b"]\n', encoding="utf-8")
    monkeypatch.setenv("ONWARD_THREADS", "2")
    monkeypatch.setenv("ONWARD_API_KEY", "sk-secret")
    result = onward("config", "show")
    found = {each["name"]: each for each in json.loads(result.stdout)["settings"]}
    assert set(found) == {option.name for option in options()}
    assert (found["port"]["value"], found["port"]["origin"]) == (9000, "onward.toml")
    assert (found["threads"]["value"], found["threads"]["origin"]) == (2, "ONWARD_THREADS")
    assert found["host"]["origin"] == "default"
    assert "sk-secret" not in result.output
    changed = onward("config", "show", "--changed", "--format", "text").stdout
    assert "alias" in changed and "a=b" in changed and "host" not in changed


def test_unchanged_settings_are_reported_in_one_sentence() -> None:
    assert onward("config", "show", "--changed", "--format", "text").stdout == "All settings are at their defaults.\n"
    assert json.loads(onward("config", "show", "--changed").stdout) == {"settings": []}


def test_an_invalid_setting_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_PORT", "x")
    assert onward("config", "show").exit_code == 1
    result = onward("doctor")
    assert result.exit_code == 1
    found = {each["subject"]: each for each in json.loads(result.stdout)["findings"]}
    assert found["Settings"]["state"] == "bad" and "ONWARD_PORT" in found["Settings"]["words"]
