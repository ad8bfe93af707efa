"""`onward score`: the numbers of lm-evaluation-harness, in this process and by a server; files, interruptions."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.waiting import PATIENCE_SECONDS

from ..conftest import onward
from ..scripted import error, scripted

TEXTS = ["Once upon a time", " trailing space ", "naïve 🙂", "=1+1", "x" * 700]
PAIRS = [("A fox", " ran"), ("A fox ", "ran"), ("", "ran"), ("ends with space   ", "z"), ("y" * 400, "z" * 200)]


def harness(server: str, context: list[int], continuation: list[int], max_length: int) -> tuple[float, bool]:
    """The score that lm-evaluation-harness computes for a context and a continuation, both token ids
    (lm_eval/models/api_models.py and openai_completions.py, 0.4.13): one generated token, whose entry is left out."""
    tokens = (context + continuation)[-max_length:]
    first = len(context) - max(0, len(context) + len(continuation) - max_length)
    body = {
        "model": "toy",
        "prompt": [tokens],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1,
        "echo": True,
    }
    logprobs = httpx2.post(f"{server}/completions", json=body, timeout=PATIENCE_SECONDS).json()["choices"][0][
        "logprobs"
    ]
    numbers, tops = logprobs["token_logprobs"][first:-1], logprobs["top_logprobs"][first:-1]
    return sum(numbers), all(one == max(top.values()) for one, top in zip(numbers, tops, strict=True))


def tokens_of(server: str, text: str) -> list[int]:
    fields = {"model": "toy", "prompt": text, "add_special_tokens": False}
    found: list[int] = httpx2.post(
        f"{server.removesuffix('/v1')}/tokenize", json=fields, timeout=PATIENCE_SECONDS
    ).json()["tokens"]
    return found


def prefix_of(server: str) -> int:
    info = httpx2.get(f"{server.removesuffix('/v1')}/tokenizer_info", timeout=PATIENCE_SECONDS).json()
    return int(info["eos_token_id"] if info["bos_token_id"] is None else info["bos_token_id"])


def scores(*arguments: str, stdin: str | None = None) -> list[dict[str, Any]]:
    done = onward("score", *arguments, stdin=stdin)
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def json_lines(objects: list[Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


def test_conditional_scores_are_those_of_the_harness(server: str) -> None:
    given = json_lines([{"context": context, "continuation": text} for context, text in PAIRS])
    found = scores("--base-url", server, "-m", "toy", "--input", "jsonl", "--window", "511", stdin=given)
    for (context, text), record in zip(PAIRS, found, strict=True):
        kept = context.rstrip()
        whole = tokens_of(server, context + text)
        split = len(tokens_of(server, kept)) if kept else 0
        ours = whole[:split] or [prefix_of(server)]
        logprob, is_greedy = harness(server, ours, whole[split:], 511)
        assert (record["logprob"], record["is_greedy"]) == (logprob, is_greedy)
        assert record["num_bytes"] == len(text.encode())
    assert [record.get("dropped_context_tokens", 0) for record in found] == [0, 0, 0, 0, 89]


@pytest.mark.slow
def test_scores_of_whole_texts_are_those_of_the_harness(server: str) -> None:
    found = scores("--base-url", server, "-m", "toy", "--input", "jsonl", "--window", "300", stdin=json_lines(TEXTS))
    for text, record in zip(TEXTS, found, strict=True):
        tokens = tokens_of(server, text)
        parts, done = [], 0
        while done < len(tokens):
            count = min(len(tokens) - done, 299)
            end = done + count
            start = max(0, end - 299)
            context = [prefix_of(server), *tokens][start : done + 1]
            parts.append(harness(server, context, tokens[done:end], 300)[0])
            done = end
        assert record["logprob"] == sum(parts)
        assert record["num_tokens"] == len(tokens) == len(record["token_logprobs"]) == len(record["ranks"])
        assert bytes.fromhex("".join(record["token_bytes"])) == text.encode()


def test_this_process_and_a_server_have_the_same_scores(server: str, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json_lines(TEXTS), encoding="utf-8")
    local = scores("in.jsonl", "-m", "toy", "--top", "3")
    assert local == scores("in.jsonl", "--base-url", server, "-m", "toy", "--top", "3")
    for record in local:
        for rank, logprob, top in zip(record["ranks"], record["token_logprobs"], record["top_logprobs"], strict=True):
            assert logprob in top.values() and (rank == 1) == (logprob == max(top.values()))


def test_an_interrupted_file_is_continued(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\nthree\n", encoding="utf-8")
    whole = onward("score", "in.txt", "--input", "lines", "-m", "toy", "-o", "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "part.jsonl").write_bytes(lines[0] + lines[1][:9])
    part = onward("score", "in.txt", "--input", "lines", "-m", "toy", "-o", "part.jsonl")
    assert part.stdout == whole.stdout and json.loads(whole.stdout)["num_texts"] == 3
    assert (tmp_path / "part.jsonl").read_bytes() == b"".join(lines)
    again = onward("score", "in.txt", "--input", "lines", "-m", "toy", "-o", "part.jsonl")
    assert "Nothing left to do" in again.stderr and again.stdout == whole.stdout


def test_scores_of_another_precision_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\n", encoding="utf-8")
    assert onward("score", "in.txt", "-m", "toy", "-o", "out.jsonl").exit_code == 0
    (tmp_path / "in.txt").write_text("another\n", encoding="utf-8")
    refused = onward("score", "in.txt", "-m", "toy", "-o", "out.jsonl")
    assert refused.exit_code == 1 and "use another file" in refused.stderr


def test_csv_has_a_row_per_token(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("=ab", encoding="utf-8")
    assert onward("score", "in.txt", "-m", "toy", "-o", "out.csv").exit_code == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(encoding="utf-8"))))
    assert [row["token"] for row in rows] == ["'=", "a", "b"]
    assert all(float(row["logprob"]) < 0 and int(row["rank"]) >= 1 for row in rows)
    refused = onward("score", "in.txt", "-m", "toy", "-o", "out.csv")
    assert refused.exit_code == 1 and "CSV file cannot be continued" in refused.stderr
    sums = onward("score", "in.txt", "-m", "toy", "-o", "again.csv", "--csv", "--format", "jsonl")
    assert json.loads(sums.stdout)["num_tokens"] == 3, "the sums of a file are on standard output, in the format"
    assert (tmp_path / "again.csv").read_text(encoding="utf-8") == (tmp_path / "out.csv").read_text(encoding="utf-8")


def test_a_comparison_with_itself_has_no_difference(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(f"line {number}" for number in range(6)), encoding="utf-8")
    done = onward("score", "--compare", "toy", "toy@exact", "in.txt", "--input", "lines")
    found = json.loads(done.stdout)
    assert found["difference"] == 0 and found["interval"] == [0, 0] and len(found["tokens"]) == 10
    shown = onward("score", "--compare", "toy", "toy", "in.txt", "--input", "lines", "--format", "text").stdout
    assert "Difference +0.00000 bits per byte, 95% interval" in shown


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-"], "Standard input contains no text."),
        (
            ["--compare", "toy", "in.txt"],
            "Standard input contains no text. FILE comes after two models: --compare A B FILE.",
        ),
        (["in.txt", "--compare", "toy", "toy", "-o", "x"], "--compare prints one result for two models"),
        (["in.txt", "-m", "toy", "--window", "99999"], "longer than the model's context"),
        (["in.txt", "-m", "toy", "--window", "10", "--overlap", "10"], "must be at least 1, and less than the window"),
        (
            ["in.txt", "-m", "toy", "--top", "2", "--csv"],
            "--top is for JSON lines: pass --format jsonl or -o OUT.jsonl",
        ),
        (["in.txt", "-m", "toy", "--top", "2", "-o", "out.CSV"], "--top is for JSON lines"),
        (["in.txt", "-m", "toy", "--top", "2", "--format", "text"], "--top is for JSON lines"),
        *(
            (["in.txt", "-m", "toy", "--csv", *flag], f"--csv and {flag[0]} are two formats of the same results")
            for flag in (["--format", "json"], ["--format", "text"], ["--transform", "id"], ["-r"])
        ),
        (["in.txt", "-m", "toy", "--api-key", "k"], "--api-key is for requests to a server"),
        (["in.txt", "-m", "nonsense/of/a/name"], "nonsense/of/a/name"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(tmp_path: Path, arguments: list[str], problem: str) -> None:
    (tmp_path / "in.txt").write_text("text", encoding="utf-8")
    done = onward("score", *arguments, stdin="")
    assert done.exit_code != 0 and problem in done.stderr and "Traceback" not in done.stderr


def test_a_server_needs_a_model(server: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("text", encoding="utf-8")
    done = onward("score", "in.txt", "--base-url", server)
    assert done.exit_code == 2 and "name one of the models of the server" in done.stderr


@pytest.mark.parametrize("status", [404, 405])
def test_a_server_that_cannot_score_is_reported_in_one_message(tmp_path: Path, status: int) -> None:
    """The error must not blame the URL."""
    (tmp_path / "in.txt").write_text("text", encoding="utf-8")
    with scripted(error(status, "Not Found")) as other:
        done = onward("score", "in.txt", "--base-url", other.url, "-m", "any")
    assert done.exit_code == 1 and f"{other.url} does not answer /tokenizer_info ({status})." in done.stderr
    assert "as Onward does" in done.stderr and "base URL" not in done.stderr
