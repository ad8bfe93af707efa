"""Batches of a real server from the command line: submitted, watched, cancelled, downloaded, and how failures are
reported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onward.cli.batch.remote import _progress

from ...listening import served_here
from ...processes import served
from ..conftest import onward
from .test_run import records, write_input

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_here("--data-dir", str(tmp_path_factory.mktemp("data"))) as url:
        yield f"{url}/v1"


def run(server: str, *arguments: str) -> Any:
    return onward("batch", *arguments, "--base-url", server)


def submitted(server: str, *arguments: str) -> dict[str, Any]:
    result = run(server, "submit", "in.jsonl", "--format", "json", *arguments)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


def test_a_file_is_sent_watched_and_fetched(server: str) -> None:
    write_input(20)
    batch = submitted(server)
    assert batch["status"] == "validating"
    done = run(server, "status", batch["id"], "--wait")
    assert done.exit_code == 0 and "completed" in done.stdout and "20" in done.stdout
    fetched = run(server, "download", batch["id"], "-o", "out.jsonl")
    assert (fetched.exit_code, fetched.stderr.splitlines()[-1]) == (0, "20 lines in out.jsonl")
    assert set(records()) == {f"line {number}" for number in range(20)}
    assert not Path("out.errors.jsonl").exists() and not list(Path().glob("*.partial"))
    listed = json.loads(run(server, "status", "--format", "json").stdout)
    assert batch["id"] in [each["id"] for each in listed["data"]]
    assert "--wait is for one batch" in run(server, "status", "--wait").stderr
    again = run(server, "download", batch["id"], "-o", "out.jsonl")
    assert again.exit_code != 0 and "out.jsonl exists" in again.stderr


def test_lines_that_failed_go_to_the_errors_file(server: str) -> None:
    write_input(2, temperature=9)
    batch = submitted(server, "--wait")
    fetched = run(server, "download", batch["id"], "-o", "out.jsonl")
    assert (fetched.exit_code, fetched.stderr.splitlines()[-1]) == (1, "2 lines in out.errors.jsonl")
    assert {each["response"]["status_code"] for each in records("out.errors.jsonl").values()} == {400}
    assert not Path("out.jsonl").exists()


def test_a_file_that_is_not_valid_is_explained(server: str) -> None:
    Path("in.jsonl").write_text('{"custom_id": "a"}\n', encoding="utf-8")
    shown = run(server, "submit", "in.jsonl", "--wait", "--format", "text")
    assert "failed" in shown.stdout
    batch = submitted(server, "--wait")
    assert batch["errors"]["data"][0]["line"] == 1
    fetched = run(server, "download", batch["id"], "-o", "out.jsonl")
    assert fetched.exit_code != 0 and "failed" in fetched.stderr
    Path("in.jsonl").write_text("not JSON\n", encoding="utf-8")
    refused = run(server, "submit", "in.jsonl")
    assert refused.exit_code != 0 and "Must be .jsonl" in refused.stderr


def test_a_batch_is_cancelled_or_says_why_not(server: str) -> None:
    write_input(3)
    batch = submitted(server, "--wait")
    ended = run(server, "cancel", batch["id"])
    assert ended.exit_code != 0 and "Cannot cancel a batch with status 'completed'" in ended.stderr
    unknown = run(server, "cancel", "batch_none")
    assert unknown.exit_code != 0 and "No batch found" in unknown.stderr


def test_a_server_is_needed() -> None:
    write_input(1)
    here = onward("batch", "submit", "in.jsonl")
    assert here.exit_code != 0 and "--base-url" in here.stderr


@pytest.mark.slow
def test_the_server_needs_a_database() -> None:
    write_input(1)
    with served() as url:
        without = run(f"{url}/v1", "submit", "in.jsonl")
    assert without.exit_code != 0 and "--data-dir" in without.stderr


def counts(completed: int, failed: int, total: int, status: str = "in_progress") -> dict[str, Any]:
    return {"status": status, "request_counts": {"completed": completed, "failed": failed, "total": total}}


@pytest.mark.parametrize(
    ("batch", "first", "seconds", "shown"),
    [
        (counts(0, 0, 0, "validating"), 0, 9.0, "validating"),
        (counts(0, 0, 4), 0, 9.0, "─" * 40 + " 0/4 in_progress"),
        (counts(1, 1, 4), 0, 10.0, "━" * 20 + "─" * 20 + " 2/4 in_progress 1 failed 0:00:10 left"),
        (counts(3, 0, 4), 2, 10.0, "━" * 30 + "─" * 10 + " 3/4 in_progress 0:00:10 left"),
        (counts(2, 0, 4), 2, 10.0, "━" * 20 + "─" * 20 + " 2/4 in_progress"),
        (counts(4, 0, 4, "finalizing"), 0, 10.0, "━" * 40 + " 4/4 finalizing"),
    ],
)
def test_the_bar_shows_counts_and_remaining_time(batch: dict[str, Any], first: int, seconds: float, shown: str) -> None:
    """The remaining time follows from the lines finished while the bar is shown, not those finished before."""
    assert _progress(batch, first, seconds, 100) == shown


def test_debug_logs_the_upload_as_well(server: str) -> None:
    write_input(1)
    logged = [
        line for line in run(server, "submit", "in.jsonl", "--debug").stderr.splitlines() if line[:2] in ("> ", "< ")
    ]
    assert [line.split()[1] for line in logged] == ["POST", "200", "POST", "200"]
    assert "/v1/files" in logged[0] and "/v1/batches" in logged[2]
