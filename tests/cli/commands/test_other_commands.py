"""models, tokenize, config, doctor."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.cli.commands import tokenize
from onward.cli.output.terminal import pluralize
from onward.cli.root import COMMANDS
from onward.settings import options
from onward.text.rendering import render_token

from ..conftest import onward
from ..terminal import Terminal
from ..test_command_line import modules_after

HEAVY = {
    "numpy",
    "openvino",
    "llvmlite",
    "httpx",
    "starlette",
    "uvicorn",
    "msgspec",
    "tokenizers",
    "ruamel.yaml",
}


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "serve"])
def test_the_help_of_no_command_loads_anything_heavy(command: str) -> None:
    code = f"from onward.cli.root import root\nroot([{command!r}, '--help'], standalone_mode=False)"
    assert not modules_after(code) & HEAVY


def test_the_help_of_create_loads_nothing_heavy() -> None:
    code = "from onward.cli.root import root\nroot(['completions', 'create', '--help'], standalone_mode=False)"
    assert not modules_after(code) & (HEAVY | {"asyncio"})


def fake_model(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (folder / name).write_text("x" * 10)
    (folder / "tokenizer.json").write_text("{}")


def test_models_on_this_machine_are_listed_with_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_model(tmp_path / "here")
    fake_model(tmp_path / "hub" / "models--org--name" / "snapshots" / "abc")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    found = {each["id"]: each for each in json.loads(onward("models", "list").stdout)["data"]}
    assert found["./here"]["source"] == "folder" and found["./here"]["bytes"] == 22
    assert found["org/name"]["source"] == "hub" and found["org/name"]["owned_by"] == "org"
    assert found["storyteller"]["source"] == "built-in" and "toy" not in found
    text = onward("models", "list", "--format", "text").stdout
    assert "./here" in text and "22 B" in text and "on disk" in text


def test_a_model_folder_is_described() -> None:
    fake_model(Path("mine"))
    Path("mine/config.json").write_text('{"max_position_embeddings": 512, "vocab_size": 9}')
    shown = json.loads(onward("models", "show", "./mine").stdout)
    assert (shown["id"], shown["format"], shown["problems"]) == ("mine", "OpenVINO IR", [])
    assert (shown["context_length"], shown["vocabulary"]) == (512, 9)
    assert "context_length  512" in onward("models", "show", "./mine", "--format", "text").stdout


def test_a_model_is_described_by_the_official_name_of_show_too() -> None:
    fake_model(Path("mine"))
    shown = onward("models", "show", "./mine").stdout
    assert onward("models", "retrieve", "./mine").stdout == shown
    assert onward("models", "retrieve", "--model", "./mine").stdout == shown
    for wrong in ([], ["./mine", "--model", "./mine"]):
        result = onward("models", "retrieve", *wrong)
        assert result.exit_code == 2
        assert "Name exactly one model, as an argument or with --model." in result.stderr


def test_the_official_delete_is_rejected() -> None:
    fake_model(Path("mine"))
    for arguments in (["./mine"], ["--model", "./mine"], ["--model", "m", "--base-url", "http://127.0.0.1:1/v1"], []):
        result = onward("models", "delete", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "`onward models list` shows the folder of every other model" in result.stderr
    assert Path("mine").is_dir()
    assert "delete" not in onward("models", "--help").stdout


def test_pull_prints_the_models_folder() -> None:
    fake_model(Path("mine"))
    assert json.loads(onward("models", "pull", "./mine").stdout)["path"] == "mine"
    assert onward("models", "pull", "./nowhere").exit_code == 4
    assert onward("models", "pull", "x", "--base-url", "http://127.0.0.1:1").exit_code == 2


def test_a_hub_that_cannot_be_reached_is_code_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(**asked: object) -> str:
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    result = onward("models", "pull", "org/name")
    assert result.exit_code == 3
    assert "onward: org/name could not be downloaded (reset by peer)." in result.stderr


def test_a_mistyped_subcommand_is_recognised() -> None:
    result = onward("models", "lst")
    assert result.exit_code == 2
    assert "Unknown command 'lst'." in result.stderr
    if version("click") >= "8.2":  # older ones do not suggest commands
        assert "Did you mean 'list'?" in result.stderr


def test_tokens_are_printed_as_ids_text_and_bytes() -> None:
    found = json.loads(onward("tokenize", "-m", "toy", "once é\U0001f600").stdout)
    assert found["count"] == len(found["tokens"]) == len(found["pieces"])
    assert b"".join(bytes.fromhex(each) for each in found["bytes"]).decode() == "once é\U0001f600"
    assert "bytes:\\xf0" in found["pieces"]


def test_tokens_of_piped_text() -> None:
    assert json.loads(onward("tokenize", "-m", "toy", stdin="ab").stdout)["tokens"] == [97, 98]
    assert json.loads(onward("tokenize", "-m", "toy", "-", stdin="ab").stdout)["tokens"] == [97, 98]
    assert onward("tokenize", "-m", "toy").exit_code == 2


def test_tokens_of_a_file_are_those_of_its_text() -> None:
    Path("story.txt").write_text("ab")
    Path("latin1.txt").write_bytes(b"caf\xe9")
    assert json.loads(onward("tokenize", "-m", "toy", "@story.txt").stdout)["tokens"] == [97, 98]
    refused = onward("tokenize", "-m", "toy", "@latin1.txt")
    assert refused.exit_code == 2
    assert "TEXT: latin1.txt is not UTF-8 text" in refused.stderr


def test_tokens_are_coloured_on_a_terminal() -> None:
    with Terminal("tokenize", "-m", "toy", "a once") as terminal:
        assert terminal.end() == 0
        assert terminal.screen == (
            "{48;5;24:a}{48;5;58: once}\n"
            '      97  "a"                  {dim:61}\n'
            '     267  " once"              {dim:20 6f 6e 63 65}\n'
            "{dim:2 tokens}\n"
        )


def test_config_shows_each_value_and_where_it_came_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onward.toml").write_text('port = 9000\nalias = ["a=b"]\n')
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


def test_the_doctor_looks_at_machine_model_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    text = onward("doctor", "--format", "text").stdout
    for subject in ("Python", "openvino", "Processor", "storyteller", "Settings", "Cache", "Port"):
        assert subject in text
    assert "unset OPENAI_BASE_URL to run in this process" in text


def test_the_doctor_finds_a_missing_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("onward.models.resolve.built_in_folder", lambda name: tmp_path / name)
    result = onward("doctor")
    assert result.exit_code == 1
    found = {each["subject"]: each for each in json.loads(result.stdout)["findings"]}
    assert found["storyteller"]["state"] == "bad"


def test_a_character_split_over_tokens_is_shown_whole() -> None:
    with Terminal("tokenize", "-m", "toy", "ü") as terminal:
        assert terminal.end() == 0
        assert terminal.screen == (
            "{48;5;24:·}{48;5;58:ü}\n"
            "     195  bytes:\\xc3           {dim:c3}\n"
            "     188  bytes:\\xbc           {dim:bc}\n"
            "{dim:2 tokens}\n"
        )


@given(st.text())
def test_tokens_from_a_server_add_up_to_the_text(text: str) -> None:
    pieces = [bytes([byte]) for byte in text.encode()]
    assert [tokenize._raw(render_token(piece)) for piece in pieces] == pieces
    spelled = tokenize._spelled(pieces)
    assert len(spelled) == len(pieces)
    assert "".join(spelled).replace("·", "") == text.replace("·", "")


def test_one_token_is_singular_in_tokenize() -> None:
    assert onward("tokenize", "-m", "toy", "a", "--format", "text").stdout.endswith("\n1 token\n")


def test_arguments_and_formats_are_explained_where_they_are_used() -> None:
    shown = " ".join(onward("tokenize", "--help").stdout.split())
    assert "[TEXT] The text; @FILE reads a file" in shown
    assert "auto: a table or a report on a terminal" in shown and "such as count." in shown
    assert "choices.0.text" not in shown


EXAMPLES = [
    (["models", "list"], "data.0.id"),
    (["models", "show", "./mine"], "id"),
    (["models", "pull", "./mine"], "path"),
    (["tokenize", "-m", "toy", "a"], "count"),
    (["config", "show"], "settings.0.value"),
    (["doctor"], "findings.0.words"),
]


@pytest.mark.parametrize(("words", "path"), EXAMPLES, ids=lambda value: " ".join(value))
def test_the_example_path_in_the_help_matches(words: list[str], path: str) -> None:
    fake_model(Path("mine"))
    names = [word for word in words[:2] if word not in ("-m",)]
    assert f"such as {path}." in " ".join(onward(*names, "--help").stdout.split())
    assert "found nothing" not in onward(*words, "--transform", path).stderr


@pytest.mark.parametrize("words", [["config", "show"], ["doctor"], ["completion"], ["models", "pull"]])
def test_commands_that_never_connect_have_no_connection_flags(words: list[str]) -> None:
    help = onward(*words, "--help").stdout
    for flag in ("--base-url", "--project", "--api-key", "--format-error"):
        assert flag not in help
    assert "--base-url" in onward("models", "list", "--help").stdout


def test_the_doctor_mentions_format_text_and_ignores_a_broken_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "--format text" in onward("doctor", "--help").stdout
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    assert "unset OPENAI_BASE_URL" in onward("doctor", "--format", "text").stdout


@pytest.mark.parametrize(("number", "words"), [(0, "0 lines"), (1, "1 line"), (2, "2 lines"), (2000, "2,000 lines")])
def test_counts_are_pluralized(number: int, words: str) -> None:
    assert pluralize(number, "line") == words
