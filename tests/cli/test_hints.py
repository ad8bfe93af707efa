"""Commands and flags that do not exist: exit code 2, and what to write instead."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from onward.cli import hints
from onward.cli.root import COMMANDS
from onward.errors import SetupError

from .conftest import create, onward


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("run",), "onward completions create"),
        (("run", "storyteller"), "onward completions create"),
        (("generate", "Once"), "onward completions create"),
        (("complete",), "onward completions create"),
        (("chat",), "has no chat: onward completions create"),
        (("Once upon a time",), "onward completions create"),
        (("list",), "onward models list"),
        (("start",), "onward serve"),
        (("up",), "onward serve"),
        (("install", "org/name"), "--model ORG/REPO"),
        (("rm", "storyteller"), "`onward models rm` removes what `onward pull` took"),
        (("stop",), "until Ctrl-C or SIGTERM"),
        (("completions", "generate"), "onward completions create"),
        (("completions", "Once upon a time"), "onward completions create"),
        (("models", "ls"), "onward models list"),
        (("models", "download", "org/name"), "onward pull ORG/REPO"),
        (("models", "lst"), "Did you mean 'list'?"),
        (("LIST",), "onward models list"),
    ],
    ids=str,
)
def test_the_command_for_one_of_another_tool_is_named(words: tuple[str, ...], command: str) -> None:
    result = onward(*words)
    assert result.exit_code == 2
    unknown = next(word for word in words if word not in COMMANDS)
    assert f"Unknown command {unknown!r}." in result.stderr
    assert command in " ".join(result.stderr.split())


def test_a_command_that_nothing_resembles_has_no_hint() -> None:
    result = onward("zzz")
    assert result.exit_code == 2
    assert result.stderr.endswith("Error: Unknown command 'zzz'.\n")


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--temp", "--temperature"),
        ("--temprature", "--temperature"),
        ("--tokens", "--max-tokens"),
        ("--max_token", "--max-tokens"),
        ("--no-stream", "--stream"),
        ("--top_logprobs", "--logprobs"),
        ("--stop-words", "--stop"),
        ("--url", "--base-url"),
    ],
)
def test_the_flag_for_one_of_another_tool_is_named(flag: str, meant: str) -> None:
    result = create("Once", flag, "1")
    assert result.exit_code == 2
    assert f"No such option {flag.replace('_', '-')!r}. Did you mean {meant!r}?" in result.stderr


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--ctx-size", "--context-length"),
        ("--bind", "--host"),
        ("--dtype", "--precision"),
        ("--kv_cache_size", "--kv-memory"),
    ],
)
def test_the_setting_for_a_flag_of_another_server_is_named(flag: str, meant: str) -> None:
    assert f"No such option {flag!r}. Did you mean {meant!r}?" in onward("serve", flag, "1").stderr


def test_the_script_for_shells_is_not_what_completes_a_prompt() -> None:
    result = onward("completion", "create", "Once")
    assert result.exit_code == 2 and "'create' is not one of 'bash', 'zsh', 'fish'. To complete a prompt: onward" in (
        result.stderr
    )
    assert "fish\nTo complete a prompt: onward" in onward("completion").stderr


def test_a_hint_names_only_a_flag_of_the_command() -> None:
    assert "No such option '--temp'." in (shown := onward("doctor", "--temp", "1").stderr)
    assert "--temperature" not in shown


@pytest.mark.parametrize(
    ("flag", "parameter"),
    [("--temp", "--temperature"), ("--max_tokens", "--max-tokens"), ("--tokens", "--max-tokens"), ("--stop", "--stop")],
)
def test_a_parameter_of_requests_is_not_a_flag_of_the_server(flag: str, parameter: str) -> None:
    expected = f"No such option {flag!r}. {parameter!r} is a parameter of requests: pass it to `onward completions"
    assert expected in onward("serve", flag, "1").stderr


def test_a_flag_that_resembles_none_has_no_hint() -> None:
    assert onward("serve", "--tmp", "1").stderr.endswith("Error: No such option '--tmp'.\n")


@pytest.mark.parametrize("flag", ["--max_tokens", "--n_predict", "--max-tokens"])
def test_flags_that_exist_have_no_hint(flag: str) -> None:
    assert create("Once", flag, "4", "--dry-run").exit_code == 0


def test_a_prompt_without_quotes_is_recognised() -> None:
    result = create("Once", "upon", "a", "time")
    assert result.exit_code == 2
    assert result.stderr.endswith("(upon a time). Put a prompt of several words in quotes.\n")
    assert "quotes" not in onward("version", "surplus").stderr


def test_no_hint_is_about_a_command_that_exists() -> None:
    assert not hints._HINTS.keys() & COMMANDS.keys()


def test_advice_names_what_the_running_command_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting without a flag of the command is named by its environment variable (SetupErrors come from below)."""

    def full(*_: object, **__: object) -> None:
        raise SetupError("The disk is full: set --cache-dir to another folder, or pass --tokenizer NAME=MODEL.")

    monkeypatch.setattr("onward.compose.load_tokenizer", full)
    monkeypatch.setattr("onward.compose.compose", full)
    named = "onward: The disk is full: set ONWARD_CACHE_DIR to another folder, or set ONWARD_TOKENIZER=NAME=MODEL.\n"
    assert onward("tokenize", "x").stderr == named
    kept = "onward: The disk is full: set --cache-dir to another folder, or pass --tokenizer NAME=MODEL.\n"
    assert onward("serve", "--port", "0", "toy").stderr.endswith(kept)


def test_commands_in_errors_begin_with_what_the_program_was_called_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.models.registry.program", lambda: ".venv/bin/onward")
    unknown = " ".join(onward("run").stderr.split())
    assert unknown.endswith(".venv/bin/onward completions create 'Once upon a time'")
    missing = " ".join(onward("models", "show", "org/nowhere").stderr.split())
    assert "download it with `.venv/bin/onward pull org/nowhere`" in missing
    assert hints.runnable("onward: see /opt/onward x, and `onward serve`") == (
        "onward: see /opt/onward x, and `.venv/bin/onward serve`"
    )


def test_packages_are_installed_where_this_program_finds_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who calls .venv/bin/onward has another pip on PATH, or none."""
    said = "run pip install 'onward[otel]', or `pip install vllm`"
    own = tmp_path / "env"
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert hints.runnable(said) == f"run {own}/python -m pip install 'onward[otel]', or `pip install vllm`"
    monkeypatch.setattr(shutil, "which", lambda name: str(own / name))
    assert hints.runnable(said) == said
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert hints.pip_install() == f"uv pip install --python {own}/python"
