"""`onward cluster`, as far as it needs no Ray. The rest is in tests/engines/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import onward


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_models_are_named_by_flags_or_by_a_file(folder: Path) -> None:
    default = onward("cluster", "config", "--replicas", "3")
    assert default.exit_code == 0
    assert "name: onward-storyteller" in default.stdout and "replicas: 3" in default.stdout
    (folder / "cluster.toml").write_text('[[model]]\nmodel = "toy"\nreplicas = 2\n', encoding="utf-8")
    found = onward("cluster", "config")
    assert "name: onward-toy" in found.stdout and "replicas: 2" in found.stdout
    assert found.stdout == onward("cluster", "config", "cluster.toml").stdout
    assert "name: onward-storyteller" in onward("cluster", "config", "--model", "storyteller").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--replicas", "3"], "--replicas goes with --model: cluster.toml says how many"),
        (["cluster.toml", "--replicas", "1"], "--replicas goes with --model"),
        (["cluster.toml", "--model", "toy"], "not both"),
    ],
)
def test_a_flag_that_would_have_no_effect_is_refused(arguments: list[str], words: str, folder: Path) -> None:
    (folder / "cluster.toml").write_text('[[model]]\nmodel = "toy"\nreplicas = 2\n', encoding="utf-8")
    refused = onward("cluster", "config", *arguments)
    assert refused.exit_code != 0
    assert words in refused.stderr
