"""`onward doctor` sees what a container or service may use, not only what the machine has."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from onward.cli.commands import doctor
from onward.cli.output.findings import Finding
from onward.kernels import code, executable_memory, self_test
from onward.machine import AvailableMemory, available_memory, bytes_in_words, cpu_quota
from tests.checkpoints.float8 import LAYOUTS, convert, is_converted
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.mtp import predicting_layer, write_predicting_folder
from tests.checkpoints.tiny import write_tiny
from tests.cli.conftest import onward
from tests.runtimes.native.test_adapters import write_adapter

GIB = 1 << 30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a machine with 8 GiB free and 16 cores."""
    root = tmp_path / "root"
    write(root / "proc/meminfo", f"MemAvailable: {8 * GIB // 1024} kB\n")
    monkeypatch.setattr(doctor, "available_memory", partial(available_memory, root))
    monkeypatch.setattr(doctor, "cpu_quota", partial(cpu_quota, root))
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    return root


def write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def limit_memory(root: Path, maximum: int, current: int) -> None:
    write(root / "sys/fs/cgroup/memory.max", str(maximum))
    write(root / "sys/fs/cgroup/memory.current", str(current))
    write(root / "sys/fs/cgroup/memory.stat", "inactive_file 0\n")


def finding(subject: str) -> dict[str, str | None]:
    found = json.loads(onward("doctor").stdout)["findings"]
    return next(each for each in found if each["subject"] == subject)


def test_a_key_is_for_a_server() -> None:
    refused = onward("doctor", "--api-key", "sk-a")
    assert refused.exit_code == 2 and "--api-key is for --server URL" in refused.stderr


def test_free_memory_without_a_limit(root: Path) -> None:
    assert finding("Memory") == {"subject": "Memory", "state": "good", "words": "8.6 GB free", "advice": None}


def test_memory_within_the_limit_of_a_container(root: Path) -> None:
    limit_memory(root, 4 * GIB, 2 * GIB)
    found = finding("Memory")
    assert found["words"] == "2.1 GB free within the limit of 4.3 GB for this container or service"
    assert found["state"] == "good"


def test_too_little_memory_within_a_limit_is_noted_though_the_machine_has_plenty(root: Path) -> None:
    limit_memory(root, GIB, GIB // 2)
    found = finding("Memory")
    assert (found["state"], found["advice"]) == ("note", "Raise that limit, or set --kv-memory to a small size.")


def test_too_little_memory_of_the_machine_is_noted(root: Path) -> None:
    write(root / "proc/meminfo", f"MemAvailable: {GIB // 2048} kB\n")
    found = finding("Memory")
    assert (found["state"], found["advice"]) == (
        "note",
        "Close other programs, or set --kv-memory to a small size.",
    )


def test_models_of_the_settings_are_named_with_what_a_token_uses_of_them(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("qwen3moe", "llama", "qwen35"):
        write_tiny(tmp_path / f"{name}.gguf", name)
    paths = [str(tmp_path / f"{name}.gguf") for name in ("qwen3moe", "llama", "nothing", "qwen35")]
    adapters = [write_adapter(tmp_path / f"{name}.lora", name, 1) for name in ("qwen3moe", "llama")]
    named = [f"{name}={path}" for name, path in zip(("fits", "misfit"), adapters, strict=True)]
    (tmp_path / "onward.toml").write_text(f"model = {json.dumps(paths)}\nlora = {json.dumps(named)}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    mixture, dense, missing, recurrent = (finding(path) for path in paths)
    assert (recurrent["words"] or "").endswith("of files, 81.9 kB of state for each sequence")
    assert "of files, 0.2 million parameters, of which a token uses 0.1 million (8 experts)" in (mixture["words"] or "")
    assert mixture["state"] == dense["state"] == "good" and "parameters" not in (dense["words"] or "")
    assert missing["state"] == "note" and "nothing.gguf" in (missing["words"] or "")
    fits, misfit = (finding(name) for name in ("fits", "misfit"))
    assert (fits["state"], fits["words"]) == ("good", "a LoRA adapter that fits qwen3moe, whose weights it shares")
    assert misfit["state"] == "bad" and "was made for 'llama', not for 'qwen3moe'" in (misfit["words"] or "")
    write(root / "proc/meminfo", "MemAvailable: 100 kB\n")
    larger = finding(paths[0])
    assert "more than the 102.4 kB of memory that are free" in (larger["words"] or "")
    assert "Experts that do not fit are read from the file when a step uses them" in (larger["advice"] or "")


@pytest.mark.parametrize(
    ("stated", "float8", "others"),
    [
        ({}, 34 / 32, 34 / 32),
        ({"WEIGHTS": "int4"}, 18 / 32, 18 / 32),
        ({"WEIGHTS": "exact"}, 36 / 32, 4),
        ({"PRECISION": "exact"}, 36 / 32, 4),
    ],
    ids=["as integers", "of 4 bits", "as they are", "exact"],
)
def test_the_memory_of_weights_in_fp8_is_that_of_the_settings(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stated: dict[str, str], float8: float, others: float
) -> None:
    """`float8`, `others`: bytes per weight. The others of this folder are in float32."""
    write_folder(tmp_path / "m", "llama, untied")
    weights = convert(tmp_path / "m", LAYOUTS["DeepSeek"])
    for name, value in ({"MODEL": str(tmp_path / "m")} | stated).items():
        monkeypatch.setenv(f"ONWARD_{name}", value)
    size = int(sum(each.size * (float8 if is_converted(name, each) else others) for name, each in weights.items()))
    assert (finding(str(tmp_path / "m"))["words"] or "").endswith(f" in FP8, {bytes_in_words(size)} of memory")


def test_settings_with_which_no_server_starts_are_a_finding(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_ENGINE_ARG", "--dtype=float16")
    found = [each for each in json.loads(onward("doctor").stdout)["findings"] if each["subject"] == "Settings"]
    assert [each["state"] for each in found] == ["good", "bad"]
    assert found[1]["words"].startswith("--engine-arg … is for models that a program computes")


def test_a_cpu_quota_is_named(root: Path) -> None:
    assert "quota" not in str(finding("Processor")["words"])
    write(root / "sys/fs/cgroup/cpu.max", "200000 100000")
    assert ", limited to 2 by a quota" in str(finding("Processor")["words"])


def test_the_kernels_are_tested(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert finding("Kernels")["state"] == "good" and "self-test passed" in str(finding("Kernels")["words"])
    monkeypatch.setattr(self_test, "EXPECTED", "0123456789abcdef")
    found = finding("Kernels")
    assert found["state"] == "bad" and "self-test failed" in str(found["words"])
    assert str(found["advice"]).startswith("The kernels compute other numbers here")


def test_memory_that_cannot_be_executed_is_a_finding(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_posix_problem", "_windows_problem"):
        monkeypatch.setattr(executable_memory, name, lambda: "Permission denied")
    self_test._digest_of_target.cache_clear()
    monkeypatch.setattr(code, "_shared", {})
    found = finding("Kernels")
    assert found["state"] == "bad" and "cannot be made executable" in str(found["advice"])


def test_the_doctor_looks_at_machine_model_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    text = onward("doctor", "--format", "text").stdout
    for subject in ("Python", "llvmlite", "Processor", "storyteller", "Settings", "Cache", "Port"):
        assert subject in text
    assert "unset OPENAI_BASE_URL to run in this process" in text


def test_the_prefix_cache_on_the_disk_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("ONWARD_PREFIX_CACHE_DIR", str(cache))
    monkeypatch.setattr(doctor, "MIN_FREE_DISK_BYTES", 0)
    assert finding("Prefix cache")["words"] == f"{cache}, which does not exist yet" and not cache.exists()
    cache.mkdir(mode=0o700)
    (cache / "a.kv").write_bytes(bytes(2_000_000))
    assert finding("Prefix cache") == {
        "subject": "Prefix cache", "state": "good", "words": f"{cache}, 1 file, 2.0 MB of 10.0 GB", "advice": None,
    }  # fmt: skip
    cache.chmod(0o755)
    found = finding("Prefix cache")
    assert found["state"] == "bad" and "chmod 700" in str(found["words"])


def test_the_doctor_compares_a_draft_model_with_its_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def finding(model: str, draft: str) -> dict[str, object]:
        monkeypatch.setenv("ONWARD_MODEL", model)
        monkeypatch.setenv("ONWARD_DRAFT", draft)
        findings: list[dict[str, object]] = json.loads(onward("doctor").stdout)["findings"]
        [found] = [each for each in findings if each["subject"] in ("Drafts", "toy", "org/toy")]
        return found

    assert finding("storyteller", "toy")["state"] == "bad"
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    absent = finding("storyteller", "org/toy")
    assert absent["state"] == "note" and "onward pull org/toy" in str(absent["words"])
    assert "toy cannot draft for storyteller" in str(finding("storyteller", "toy")["words"])
    assert "names a model that is not served" in str(finding("storyteller", "other=toy")["words"])
    monkeypatch.setattr(doctor, "_configured", lambda name, *_, **__: Finding("model", "good", name))
    same = finding("toy", "toy")
    assert same["state"] == "note" and "100% of toy" in str(same["words"])


def test_the_doctor_looks_for_layers_that_predict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their bytes count only where --draft mtp uses them."""
    layer, folder = predicting_layer("qwen2, mimo"), tmp_path / "mimo"
    write_predicting_folder(folder, "qwen2, mimo", layer)
    size = sum(array.nbytes for array in layer.values())
    free = sum(path.stat().st_size for path in folder.iterdir()) - size
    monkeypatch.setattr(doctor, "available_memory", lambda: AvailableMemory(free))
    monkeypatch.setenv("ONWARD_MODEL", str(folder))
    without = finding(str(folder))
    assert without["state"] == "good"
    assert f"({bytes_in_words(size)} of which are not loaded, because only --draft mtp" in str(without["words"])
    monkeypatch.setenv("ONWARD_DRAFT", "mtp")
    assert finding(str(folder))["state"] == "note" and "not loaded" not in str(finding(str(folder))["words"])
    found = {}
    for model in (str(folder), "storyteller"):
        monkeypatch.setenv("ONWARD_MODEL", model)
        found[model] = finding("mtp")
    drafting, other = found.values()
    assert drafting["state"] == "good"
    assert str(drafting["words"]).endswith("its layers that predict several tokens at once")
    assert other["state"] == "bad" and "has no layers that predict several tokens at once" in str(other["words"])


def test_the_doctor_finds_a_missing_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("onward.models.resolve.built_in_folder", lambda name: tmp_path / name)
    result = onward("doctor")
    assert result.exit_code == 1
    found = {each["subject"]: each for each in json.loads(result.stdout)["findings"]}
    assert found["storyteller"]["state"] == "bad"


def test_the_doctor_mentions_format_text_and_ignores_a_broken_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "--format text" in onward("doctor", "--help").stdout
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    assert "unset OPENAI_BASE_URL" in onward("doctor", "--format", "text").stdout


def test_programs_that_can_be_engines_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "llama-server"
    write(program, "#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    [found] = doctor._engines()
    assert (found.subject, found.state) == ("Other engines", "good")
    assert found.words == f"llama-server ({program}); not installed, and not needed: vLLM, SGLang"
