"""The table of programs: their commands, their environment, and what keeps them private."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from onward.engines.programs.kinds import KINDS, LaunchPlan
from onward.errors import SetupError


def plan(folder: Path, **changes: object) -> LaunchPlan:
    fields: dict[str, object] = {
        "name": "m",
        "model": Path("/models/m"),
        "folder": folder,
        "context_length": 4096,
        "max_rows": 64,
        "key": "secret-key",
        "port": 4321,
        "arguments": ("--mine",),
    }
    return LaunchPlan(**{**fields, **changes})  # type: ignore[arg-type]


COMMANDS = {
    "llama.cpp": "--model /models/m --alias m --host FOLDER/engine.sock --parallel 4 --ctx-size 16384 --no-webui "
    "--offline --mine",
    "vllm": "serve /models/m --served-model-name m --uds FOLDER/engine.sock --max-num-seqs 64 --max-model-len 4096 "
    "--max-logprobs -1 --enable-prompt-tokens-details --structured-outputs-config.backend=guidance --mine",
    "sglang": "--config FOLDER/sglang.yaml --model-path /models/m --served-model-name m --host 127.0.0.1 --port 4321 "
    "--max-running-requests 64 --context-length 4096 --mine",
}


@pytest.mark.parametrize("word", KINDS)
def test_each_program_is_started_by_its_command(tmp_path: Path, word: str) -> None:
    command = KINDS[word].command(["program"], plan(tmp_path))
    assert " ".join(command).replace(str(tmp_path), "FOLDER") == f"program {COMMANDS[word]}"


@pytest.mark.parametrize(
    ("word", "argument", "found"),
    [
        ("vllm", "--mine", True),
        ("vllm", "--structured-outputs-config.backend=xgrammar", False),
        ("vllm", '--structured_outputs_config={"backend": "xgrammar"}', False),
        ("sglang", "--mine", False),
    ],
)
def test_whether_a_program_enforces_grammars_is_known_from_its_arguments(
    tmp_path: Path, word: str, argument: str, found: bool
) -> None:
    stated = plan(tmp_path, arguments=(argument,))
    assert KINDS[word].has_grammars(stated) == found
    command = KINDS[word].command(["program"], stated)
    assert ("--structured-outputs-config.backend=guidance" in command) == found, "vLLM reads flags with dots last"


@pytest.mark.parametrize("word", ["vllm", "sglang"])
def test_without_a_context_length_the_program_takes_the_models_own(tmp_path: Path, word: str) -> None:
    command = KINDS[word].command(["program"], plan(tmp_path, context_length=0))
    assert not {"--max-model-len", "--context-length"} & {*command}


@pytest.mark.parametrize("word", KINDS)
def test_other_users_see_no_key_and_open_no_socket(tmp_path: Path, word: str) -> None:
    command = KINDS[word].command(["program"], plan(tmp_path))
    assert not any("secret-key" in each for each in command)
    if not KINDS[word].has_socket:
        settings = tmp_path / "sglang.yaml"
        assert "secret-key" in settings.read_text(encoding="utf-8")
        assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    assert not any("trust" in each for each in command)


def test_secrets_are_not_inherited_and_nothing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONWARD_API_KEY", "ONWARD_UPSTREAM_KEY", "ONWARD_MODEL", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    for kind in KINDS.values():
        variables = kind.variables()
        assert "secret" not in variables.values()
        assert variables["CUDA_VISIBLE_DEVICES"] == "1"
        assert variables["DO_NOT_TRACK"] == variables["VLLM_NO_USAGE_STATS"] == variables["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("word", "line", "percentage"),
    [
        ("vllm", "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00]", 50),
        ("vllm", "Capturing CUDA graphs: 100% done", None),
        ("vllm", "loaded", None),
        ("llama.cpp", "load_tensors: loading model tensors: 42 %", 42),
        ("llama.cpp", "srv  load_model: loading model '/m.gguf'", None),
        ("sglang", "Loading safetensors checkpoint shards: 100% Completed | 4/4", 100),
    ],
)
def test_how_much_is_loaded_is_read_from_the_lines(word: str, line: str, percentage: int | None) -> None:
    assert KINDS[word].percentage(line) == percentage


def test_a_program_is_the_given_one_or_the_one_on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    kind = KINDS["llama.cpp"]
    with pytest.raises(SetupError, match=r"llama-server was not found: install llama.cpp, or pass --engine-path"):
        kind.find()
    program.touch()
    with pytest.raises(SetupError, match="is not an executable program"):
        kind.find(program)
    program.chmod(0o755)
    assert kind.find() == kind.find(program) == [str(program)]
    assert KINDS["sglang"].find(program) == [str(program), "-m", "sglang.launch_server"]
    with pytest.raises(SetupError, match="a Python that has it"):
        KINDS["sglang"].find()
