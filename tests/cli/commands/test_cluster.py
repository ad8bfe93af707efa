"""`onward cluster`, as far as it needs no Ray. The rest is in tests/engines/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.engines.cluster import connection
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
        (["--image", "mine"], "--image is for --kuberay"),
    ],
)
def test_a_flag_that_would_have_no_effect_is_refused(arguments: list[str], words: str, folder: Path) -> None:
    (folder / "cluster.toml").write_text('[[model]]\nmodel = "toy"\nreplicas = 2\n', encoding="utf-8")
    refused = onward("cluster", "config", *arguments)
    assert refused.exit_code != 0
    assert words in refused.stderr


@pytest.mark.parametrize("flag", [("--port", "7000"), ("--num-cpus", "0"), ("--num-gpus", "1")])
def test_a_flag_of_rays_start_is_refused_where_ray_runs(flag: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "make_token", lambda: None)
    monkeypatch.setattr(connection, "connect", lambda address: None)
    monkeypatch.setattr(connection, "address_of_cluster", lambda: "10.0.0.5:6379")
    refused = onward("cluster", "up", "--model", "toy", *flag)
    assert refused.exit_code != 0
    assert f"{flag[0]} is for the start of Ray, which runs already, at 10.0.0.5:6379" in refused.stderr


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('engine = "vllm"\nthreads = 2', "The model toy: threads is for models that Onward itself computes"),
        ('engine = "vllm"\nspeculation = "off"', "speculation is for models that Onward itself computes"),
        ('engine = "vllm"\nprefix_cache = false', "The model toy: prefix_cache is for models that Onward itself"),
        ('engine = "vllm"\nweights = "int4"', "leave it out; engine_arg passes a flag of that program's own."),
        ("prefix_cache_disk = 1000", "The model toy: prefix_cache_disk limits the files in prefix_cache_dir: pass"),
        (
            'engine_process = "off"\nengine_timeout = 9',
            "engine_timeout is how long an engine's process may be silent, and engine_process off starts none: leave",
        ),
        ('engine = "b=vllm"', "The model toy: engine b=… names a model that is not served. The models are: toy."),
        (
            'engine = "vllm"\nengine_arg = ["sglang=--x"]',
            "engine_arg sglang=… is for models that sglang computes, and there is none: pass engine sglang, or leave",
        ),
        ('engine_arg = "--dtype=float16"', "The model toy: engine_arg … is for models that a program computes"),
    ],
)
def test_a_setting_that_the_replicas_would_not_use_is_refused_before_they_are_started(
    table: str, words: str, folder: Path
) -> None:
    (folder / "cluster.toml").write_text(f'[[model]]\nmodel = "toy"\n{table}\n', encoding="utf-8")
    refused = onward("cluster", "config")
    assert refused.exit_code != 0
    assert words in refused.stderr
