"""Without a server a model runs in this process; off a terminal results are documents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from onward.cli.source import local
from onward.settings import Settings

from ..conftest import create, onward

TOY = ("--model", "toy", "--seed", "1", "--max-tokens", "8")


def test_off_a_terminal_a_completion_is_one_json_document() -> None:
    result = create("Once upon a time", *TOY)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["object"] == "text_completion"
    assert document["model"] == "toy"
    assert document["usage"]["completion_tokens"] == 8
    assert result.stderr == ""


def test_a_stream_is_one_document_per_chunk_and_folds_to_the_completion() -> None:
    whole = json.loads(create("Once", *TOY).stdout)
    lines = create("Once", *TOY, "--stream", "--format", "jsonl").stdout.splitlines()
    assert len(lines) > 1
    chunks = [json.loads(line) for line in lines]
    assert "".join(each["choices"][0]["text"] for each in chunks) == whole["choices"][0]["text"]


def test_usage_is_in_the_last_chunk() -> None:
    lines = create("Once", *TOY, "--stream", "--stream-options.include-usage", "--format", "jsonl").stdout.splitlines()
    last = json.loads(lines[-1])
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 8


def test_max_items_ends_a_stream_early() -> None:
    lines = create("Once", *TOY, "--stream", "--format", "jsonl", "--max-items", "3").stdout.splitlines()
    assert len(lines) == 3


def test_max_items_implies_a_stream() -> None:
    assert len(create("Once", *TOY, "--format", "jsonl", "--max-items", "3").stdout.splitlines()) == 3
    assert json.loads(create("Once", "--max-items", "3", "--dry-run").stdout) == {"prompt": "Once", "stream": True}
    refused = create("Once", *TOY, "--stream", "false", "--max-items", "3")
    assert refused.exit_code == 2
    assert "--max-items counts the chunks of a stream" in refused.stderr
    assert create("Once", *TOY, "--best-of", "2", "--max-items", "3").exit_code == 4


def test_transform_and_raw_output_print_the_text_alone() -> None:
    whole = json.loads(create("Once", *TOY).stdout)["choices"][0]["text"]
    assert create("Once", *TOY, "--transform", "choices.0.text", "-r").stdout == whole + "\n"
    assert json.loads(create("Once", *TOY, "--transform", "choices.0.text").stdout) == whole


def test_text_off_a_terminal_is_the_text_alone() -> None:
    whole = json.loads(create("Once", *TOY).stdout)["choices"][0]["text"]
    assert create("Once", *TOY, "--format", "text").stdout == whole + "\n"
    assert (
        onward("api", "completions.create", "-p", "Once", "-m", "toy", "--seed", "1", "-M", "8").stdout == whole + "\n"
    )
    assert create("Once", *TOY, "--format", "text", "--stream").stdout == whole + "\n"


def test_the_old_spelling_heads_several_choices() -> None:
    text = onward("api", "completions.create", "-p", "Once", "-m", "toy", "-M", "4", "-n", "2").stdout
    assert text.count("===== Completion ") == 2


def test_a_piped_text_is_continued() -> None:
    result = create(*TOY, "--echo", "--transform", "choices.0.text", "-r", stdin="hi")
    assert result.stdout.startswith("hi")


def test_a_piped_body_reaches_the_model() -> None:
    result = create("--max-tokens", "2", stdin='{"model": "toy", "prompt": "a", "max_tokens": 9, "seed": 1}')
    assert json.loads(result.stdout)["usage"]["completion_tokens"] == 2


def test_stats_go_to_stderr() -> None:
    result = create("Once", *TOY, "--stats")
    assert json.loads(result.stdout)
    assert "prompt 4 tokens (0 cached) · completion 8 tokens" in result.stderr


def test_a_rejected_request_exits_with_code_4_with_empty_stdout() -> None:
    result = create("Once", *TOY, "--temperature", "9")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "Invalid 'temperature': decimal above maximum value." in result.stderr
    assert "code decimal_above_max_value" in result.stderr


def test_a_rejected_request_does_not_load_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.cli.send.open_source", lambda *_: pytest.fail("a model was loaded"))
    assert create("Once", "--temperature", "9").exit_code == 4


def test_errors_have_formats_and_transforms_too() -> None:
    result = create("Once", *TOY, "--temperature", "9", "--format-error", "jsonl")
    assert json.loads(result.stderr)["code"] == "decimal_above_max_value"
    result = create("Once", *TOY, "--temperature", "9", "--transform-error", "param", "-r")
    assert result.stderr == "temperature\n"


def test_an_unknown_model_exits_with_code_4_with_a_suggestion() -> None:
    result = create("Once", "--model", "storyteler")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "Did you mean 'storyteller'?" in result.stderr


def test_the_settings_name_the_default_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_MODEL", "toy")
    monkeypatch.setenv("ONWARD_ALIAS", "davinci=toy")
    assert json.loads(create("a", "-M", "1").stdout)["model"] == "toy"
    assert json.loads(create("a", "-M", "1", "-m", "davinci").stdout)["model"] == "toy"


def test_a_flag_of_onwards_own_engine_is_refused_for_another_servers_model() -> None:
    result = create("Once", "--model", "there=vllm+http://127.0.0.1:1", "--precision", "exact")
    assert result.exit_code == 1 and "--precision is for models that Onward itself computes" in result.stderr


def test_what_a_settings_file_states_of_other_models_does_not_concern_a_command() -> None:
    there = "there=vllm+http://127.0.0.1:1"
    stated = Settings(
        model=("a", "b", there), draft=(("", "d"),), engine=(("b", "llama.cpp"),), tokenizer=(("there", "toy"),),
        precision="exact", threads=2, kv_memory=1,
    )  # fmt: skip
    found = local._for(stated, ["a"], ())
    assert (found.draft, found.engine, found.tokenizer) == ((("a", "d"),), (), ())
    assert (found.precision, found.threads, found.kv_memory) == ("exact", 2, 1)
    found = local._for(stated, ["b"], ())
    assert (found.draft, found.engine, found.tokenizer) == ((), (("b", "llama.cpp"),), ())
    assert (found.precision, found.threads, found.kv_memory) == ("fast", 2, None)
    found = local._for(stated, [there], {"precision"})
    assert (found.draft, found.engine, found.tokenizer) == ((), (), (("there", "toy"),))
    assert (found.precision, found.threads, found.kv_memory) == ("exact", 0, None)


@pytest.mark.slow
def test_every_chunk_is_flushed_and_a_reader_may_leave() -> None:
    command = [
        sys.executable,
        "-m",
        "onward",
        "completions",
        "create",
        "Once",
        "--model",
        "toy",
        "--format",
        "jsonl",
    ]
    process = subprocess.Popen(
        [*command, "--stream", "--max-tokens", "1900", "--ignore-eos"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())["object"] == "text_completion"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error() -> None:
    command = [sys.executable, "-m", "onward", "completions", "create", "Once", *TOY]
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (1, "onward: The output: No space left on device.\n")


def test_explore_is_auto_with_a_note() -> None:
    for name in ("explore", "Explore"):
        result = create("Once", *TOY, "--format", name)
        assert json.loads(result.stdout)["object"] == "text_completion"
        assert result.stderr == "--format explore: onward has no explorer; using auto\n"
    assert (
        onward("--format", "explore", "tokenize", "-m", "toy", "a").stdout
        == onward("tokenize", "-m", "toy", "a").stdout
    )
    result = create("Once", *TOY, "--temperature", "9", "--format-error", "EXPLORE")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith("--format-error explore: onward has no explorer; using auto\nonward: ")


def test_force_color_colours_a_pipe_and_no_color_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" not in create("Once", *TOY).stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[34;1m" in create("Once", *TOY).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in create("Once", *TOY).stdout


def test_yaml_documents_of_a_stream_are_separated() -> None:
    whole = json.loads(create("Once", *TOY).stdout)["choices"][0]["text"]
    chunks = list(YAML(typ="safe", pure=True).load_all(create("Once", *TOY, "--stream", "--format", "yaml").stdout))
    assert len(chunks) > 1
    assert "".join(each["choices"][0]["text"] for each in chunks) == whole
    texts = create("Once", *TOY, "--stream", "--format", "yaml", "--transform", "choices.0.text").stdout
    assert "".join(YAML(typ="safe", pure=True).load_all(texts)) == whole
    assert "---" not in create("Once", *TOY, "--format", "yaml").stdout


def test_a_transform_that_finds_nothing_is_noted_once() -> None:
    words = "--transform matched nothing; printing the whole document\n"
    result = create("Once", *TOY, "--transform", "choices.0.txt", "--stream")
    assert result.stdout.count("text_completion") > 1
    assert result.stderr == words
    result = onward("tokenize", "-m", "toy", "a", "--transform", "nothing")
    assert json.loads(result.stdout)["tokens"] == [97]
    assert result.stderr == words
    assert create("Once", *TOY, "--transform", "choices.0.logprobs").stderr == ""


def test_usage_requested_for_stats_is_not_printed() -> None:
    plain = create("Once", *TOY, "--stream", "--format", "jsonl")
    result = create("Once", *TOY, "--stream", "--format", "jsonl", "--stats")
    assert "prompt 4 tokens (0 cached) · completion 8 tokens" in result.stderr
    assert len(result.stdout.splitlines()) == len(plain.stdout.splitlines())
    asked = create("Once", *TOY, "--stream", "--format", "jsonl", "--stats", "--stream-options.include-usage")
    assert json.loads(asked.stdout.splitlines()[-1])["usage"]["completion_tokens"] == 8
    refused = create("Once", *TOY, "--stream", "--stats", "--stream-options.include-usage=false")
    assert "token counts not reported" in refused.stderr


def test_one_token_is_singular() -> None:
    assert "completion 1 token ·" in create("Once", "--model", "toy", "--max-tokens", "1", "--stats").stderr


def fingerprint(*arguments: str) -> str:
    result = create("Once", "--max-tokens", "1", "--transform", "system_fingerprint", "-r", *arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.slow
def test_precision_is_a_flag_of_a_local_run(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = fingerprint("--precision", "exact")
    assert exact != fingerprint("--precision", "fast") == fingerprint()
    monkeypatch.setenv("ONWARD_PRECISION", "exact")
    assert exact == fingerprint() != fingerprint("--precision", "fast")


def test_an_unknown_precision_is_a_usage_error() -> None:
    result = create("Once", "--precision", "sloppy")
    assert result.exit_code == 2
    assert "Invalid value 'sloppy' for --precision: must be one of fast, exact." in result.stderr


def test_a_server_has_its_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("Once", "--model", "m", "--precision", "exact")
    words = "--precision is for a model in this process, but {} names a server: {}."
    result = create(*arguments, "--base-url", "http://127.0.0.1:1/v1")
    assert result.exit_code == 2
    assert words.format("--base-url", "leave out one of them") in result.stderr
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    result = create(*arguments)
    assert result.exit_code == 2
    assert words.format("OPENAI_BASE_URL", "unset OPENAI_BASE_URL to use one") in result.stderr
