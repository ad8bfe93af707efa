"""A batch answers every line once, whatever interrupts it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onward.cli.source.base import Document
from onward.errors import EngineStopped, HubUnreachable, Overloaded
from onward.file_locks import NoLocks
from tests.waiting import PATIENCE_SECONDS, until, wait_for

from ...listening import served_here
from ...processes import free_port, served, server_process
from ..conftest import onward
from ..scripted import answer, completion, error, scripted
from ..terminal import COMMAND, Terminal


def write_input(count: int, path: Path = Path("in.jsonl"), **fields: Any) -> None:
    lines = [
        {"custom_id": f"line {number}", "method": "POST", "url": "/v1/completions",
         "body": {"model": "toy", "prompt": f"{number}", "max_tokens": 4, "seed": 1, **fields}}
        for number in range(count)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def records(path: str = "out.jsonl") -> dict[str, dict[str, Any]]:
    """Results by custom_id; fails on duplicates."""
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    found = {each["custom_id"]: each for each in lines}
    assert len(found) == len(lines), "a line is duplicated"
    return found


def run(*arguments: str) -> Any:
    return onward("batch", "run", "in.jsonl", "-o", "out.jsonl", *arguments)


def test_every_line_gets_its_answer_in_openais_format() -> None:
    write_input(20)
    result = run()
    assert result.exit_code == 0, result.output
    found = records()
    assert set(found) == {f"line {number}" for number in range(20)}
    one = found["line 3"]
    assert one["error"] is None and one["id"].startswith("batch_req_")
    assert one["response"]["status_code"] == 200 and one["response"]["request_id"].startswith("req_")
    assert one["response"]["body"]["object"] == "text_completion"
    assert not Path("out.errors.jsonl").exists()
    assert result.stderr.startswith("20 lines completed · 8")


def test_rejected_lines_go_to_the_errors_file() -> None:
    write_input(3)
    with Path("in.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"custom_id": "hot", "body": {"model": "toy", "prompt": "a", "temperature": 9}}\n\n')
        file.write('{"custom_id": "live", "body": {"model": "toy", "prompt": "a", "stream": true}}\n')
    result = run()
    assert result.exit_code == 1
    assert result.stderr.startswith("3 lines completed · ")
    assert " · 2 rejected, see out.errors.jsonl" in result.stderr
    assert len(records()) == 3
    rejected = records("out.errors.jsonl")
    assert set(rejected) == {"hot", "live"}
    assert rejected["hot"]["response"]["status_code"] == 400
    assert rejected["hot"]["response"]["body"]["error"]["code"] == "decimal_above_max_value"


def test_a_model_that_the_server_does_not_have_ends_a_run_of_it() -> None:
    """Otherwise every line would be recorded as rejected, until the errors file is deleted."""
    write_input(3)
    with served_here() as url:
        result = run("--base-url", f"{url}/v1", "--model", "tpy")
        assert result.exit_code == 4 and "Did you mean 'toy'?" in result.stderr
        assert not Path("out.errors.jsonl").exists() and not Path("out.jsonl").exists()
        assert run("--base-url", f"{url}/v1", "--model", "toy").exit_code == 0
    assert len(records()) == 3


def test_lines_for_models_that_the_server_does_not_have_are_reported_once() -> None:
    write_input(20)
    lines = Path("in.jsonl").read_text(encoding="utf-8").replace('"toy"', '"tpy"', 5)
    Path("in.jsonl").write_text(lines, encoding="utf-8")
    with served_here() as url:
        result = run("--base-url", f"{url}/v1", "--concurrency", "1")
    assert result.exit_code == 1
    said, summary = result.stderr.splitlines()
    assert said.startswith("Line 1: The model `tpy` does not exist") and said.endswith("Did you mean 'toy'?")
    assert summary.startswith("15 lines completed · ") and summary.endswith("5 rejected, see out.errors.jsonl")


def test_a_line_that_is_not_sent_is_not_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the command would wait for a wrong address."""
    Path("in.jsonl").write_text(
        '{"custom_id": "live", "body": {"model": "toy", "prompt": "a", "stream": true}}\n', encoding="utf-8"
    )
    finished: list[object] = []
    monkeypatch.setattr("onward.cli.batch.patience.Patience.finished", lambda self: finished.append(self))
    assert "1 rejected" in run("--base-url", "http://127.0.0.1:9/v1").stderr and not finished


def test_a_second_run_answers_what_is_missing_only() -> None:
    write_input(5)
    run()
    before = Path("out.jsonl").read_text(encoding="utf-8")
    write_input(8)
    result = run()
    assert "3 lines completed · 5 before" in result.stderr
    assert Path("out.jsonl").read_text(encoding="utf-8").startswith(before)
    assert len(records()) == 8
    assert "Nothing left to do" in run().stderr


def test_a_torn_last_line_is_answered_again() -> None:
    write_input(4)
    run()
    text = Path("out.jsonl").read_text(encoding="utf-8")
    Path("out.jsonl").write_text(text[: text.rindex('"response"')], encoding="utf-8")
    assert "1 line completed · 3 before" in run().stderr
    assert len(records()) == 4


@pytest.mark.slow
def test_a_kill_loses_and_repeats_nothing() -> None:
    total = 1500
    write_input(total)
    command = [*COMMAND, "batch", "run", "in.jsonl", "-o", "out.jsonl", "--concurrency", "4"]
    for wanted in (50, 250):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        wait_for(lambda: _lines() >= wanted or process.poll() is not None)  # noqa: B023
        os.kill(process.pid, signal.SIGKILL)
        assert process.stderr is not None
        process.stderr.close()
        assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
        assert wanted <= _lines() < total
    assert run().exit_code == 0
    assert set(records()) == {f"line {number}" for number in range(total)}


def _lines() -> int:
    path = Path("out.jsonl")
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.slow
def test_ctrl_c_can_be_resumed() -> None:
    with scripted(
        answer(200, completion("x")), lambda server, connection: server.go_on.wait(PATIENCE_SECONDS)
    ) as server:
        write_input(3)
        flags = ("--base-url", server.url, "--concurrency", "1")
        with Terminal("batch", "run", "in.jsonl", "-o", "out.jsonl", *flags) as terminal:
            wait_for(lambda: _lines() == 1)
            terminal.process.send_signal(signal.SIGINT)
            assert terminal.end() == 130
            assert "Traceback" not in terminal.screen
            assert terminal.screen.endswith("1 of 3 lines completed; run the same command again to continue.\n")
        server.go_on.set()
    assert len(records()) == 1
    assert run().exit_code == 0
    assert len(records()) == 3


@pytest.mark.parametrize(
    ("encoding", "cell", "dot"), [("utf-8", "─", "·"), pytest.param("ascii", "-", "\\xb7", marks=pytest.mark.slow)]
)
def test_a_bar_shows_progress_on_a_terminal(encoding: str, cell: str, dot: str) -> None:
    """It is one line, also in an encoding that has no such characters."""
    write_input(30)
    command = ("batch", "run", "in.jsonl", "-o", "out.jsonl")
    with (
        scripted(answer(200, completion("x"))) as server,
        Terminal(*command, "--base-url", server.url, PYTHONIOENCODING=encoding) as terminal,
    ):
        assert terminal.end() == 0
        assert f"{cell * 40} 0/30" in terminal.raw.decode()
        assert "/30" not in terminal.screen
        assert f"30 lines completed {dot} 60 tokens" in terminal.screen


class Fake:
    """A source whose requests take a moment, and until so many of them were under way at once; keeps count of them."""

    def __init__(self, failure: Exception | None = None, together: int = 1) -> None:
        self.under_way = self.most = 0
        self.failure = failure
        self.together = together

    async def complete(self, fields: dict[str, Any]) -> Document:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await until(lambda: self.most >= self.together)
        await asyncio.sleep(0.002)
        self.under_way -= 1
        if self.failure is not None:
            raise self.failure
        return Document(completion("x"), json.dumps(completion("x")))

    async def aclose(self) -> None:
        pass


def test_requests_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(together=7)
    monkeypatch.setattr("onward.cli.batch.run.open_source", lambda *_, **__: fake)
    write_input(40)
    assert run("--concurrency", "7").exit_code == 0
    assert fake.most == 7
    assert len(records()) == 40


def test_a_queue_that_is_full_without_others_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.cli.batch.run.open_source", lambda *_, **__: Fake(Overloaded()))
    write_input(1)
    assert run().exit_code == 1
    assert records("out.errors.jsonl")["line 0"]["response"]["status_code"] == 503


def test_an_engine_that_stopped_ends_the_run_and_loses_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.cli.batch.run.open_source", lambda *_, **__: Fake(EngineStopped()))
    write_input(3)
    assert run().exit_code == 5
    assert not Path("out.errors.jsonl").exists()


def test_an_invalid_key_ends_the_run() -> None:
    write_input(50)
    with scripted(error(401, "Incorrect API key provided.")) as server:
        result = run("--base-url", server.url, "--concurrency", "1")
    assert result.exit_code == 4
    assert len(server.requests) == 1
    assert not Path("out.errors.jsonl").exists() and not Path("out.jsonl").exists()


def test_a_flag_can_replace_the_model_of_the_lines() -> None:
    write_input(2, model="text-davinci-003")
    assert run("--model", "toy").exit_code == 0
    assert {each["response"]["body"]["model"] for each in records().values()} == {"toy"}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["{"], "in.jsonl contains no valid request. Line 1 is not JSON"),
        (["", "[]"], "in.jsonl contains no valid request. Line 2 is not a JSON object"),
        (["[" * 5000], "Line 1 is not JSON that can be read: its arrays and objects are nested too deeply."),
        (['{"custom_id": "a", "body": 1e999}'], "Line 1 is not JSON: Number out of range."),
        (["once upon", "a time"], "Line 1 is not JSON: invalid character (byte 0)."),
        (['{"custom_id": "\udce9"}'], "Line 1 is not UTF-8 text (invalid continuation byte at byte 15)."),
    ],
)
def test_a_file_without_a_valid_request_is_an_error(lines: list[str], words: str) -> None:
    Path("in.jsonl").write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    result = run()
    assert result.exit_code == 1
    assert words in result.stderr
    assert not Path("out.errors.jsonl").exists()


def test_invalid_lines_do_not_stop_the_others() -> None:
    write_input(2)
    first, second = Path("in.jsonl").read_bytes().splitlines()
    lines: list[tuple[bytes, str | None, str]] = [
        (b"", None, ""),
        (b"{", None, "Line 2 is not JSON"),
        (b'{"custom_id": "\xff"}', None, "Line 3 is not UTF-8 text (invalid start byte at byte 15)."),
        (b'{"body": {}}', None, "Line 4: Missing required parameter: 'custom_id'."),
        (first, "line 0", ""),
        (b'{"custom_id": "line 0", "body": {}}', "line 0", "Line 6: the custom_id 'line 0' is already used in line 5"),
        (b'{"custom_id": "c"}', "c", "Line 7: Missing required parameter: 'body'."),
        (
            b'{"custom_id": "d", "url": "/v1/chat/completions", "body": {}}',
            "d",
            "Line 8: The URL provided for this request does not match",
        ),
        (second, "line 1", ""),
    ]
    Path("in.jsonl").write_bytes(b"\n".join(raw for raw, _, _ in lines))
    result = run()
    assert result.exit_code == 1
    assert result.stderr.startswith("2 lines completed · 8 tokens")
    assert result.stderr.endswith(" · 6 not sent, see out.errors.jsonl\n")
    assert set(records()) == {"line 0", "line 1"}
    rejected = [json.loads(line) for line in Path("out.errors.jsonl").read_text(encoding="utf-8").splitlines()]
    wanted = [(number, custom_id, words) for number, (_, custom_id, words) in enumerate(lines, 1) if words]
    for found, (number, custom_id, words) in zip(rejected, wanted, strict=True):
        assert (found["custom_id"], found["response"]) == (custom_id, None)
        assert found["error"]["line"] == number
        assert found["error"]["message"].startswith(words)
    assert rejected[3]["error"]["code"] == "duplicate_custom_id"
    again = run()
    assert "Nothing left to do · 8 before · 6 not sent" in again.stderr
    assert len(Path("out.errors.jsonl").read_text(encoding="utf-8").splitlines()) == 6


def test_a_byte_order_mark_before_the_first_line_is_passed_over() -> None:
    write_input(2)
    mark = b"\xef\xbb\xbf"
    Path("in.jsonl").write_bytes(mark + Path("in.jsonl").read_bytes())
    assert run().exit_code == 0
    assert set(records()) == {"line 0", "line 1"}
    Path("in.jsonl").write_bytes(b"\n" + mark + b"{}\n" + Path("in.jsonl").read_bytes().removeprefix(mark))
    assert run().exit_code == 1, "one in the middle is a mistake"


def test_a_repeated_custom_id_does_not_hide_its_first_line_from_the_next_run() -> None:
    write_input(1)
    line = Path("in.jsonl").read_text(encoding="utf-8")
    Path("in.jsonl").write_text(line + line, encoding="utf-8")
    assert run().exit_code == 1
    Path("out.jsonl").unlink()
    assert "1 line completed · 1 before" in run().stderr
    assert run().exit_code == 1
    assert set(records()) == {"line 0"}


@pytest.mark.parametrize("others", [0, 2])
def test_a_line_with_an_unknown_model_is_rejected(others: int) -> None:
    write_input(others)
    with Path("in.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"custom_id": "lost", "body": {"model": "text-davinci-003", "prompt": "a"}}\n')
    result = run()
    assert result.exit_code == 1
    assert result.stderr.startswith(f"{others} lines completed · ")
    assert "1 rejected, see out.errors.jsonl" in result.stderr
    rejected = records("out.errors.jsonl")["lost"]["response"]
    assert rejected["status_code"] == 404
    assert rejected["body"]["error"]["code"] == "model_not_found"
    assert rejected["body"]["error"]["message"].startswith("The model `text-davinci-003` does not exist")
    assert len(records()) == others if others else not Path("out.jsonl").exists()
    assert f"Nothing left to do · {others + 1} before" in run().stderr


def test_an_unknown_model_for_all_lines_ends_the_run() -> None:
    write_input(2)
    assert run("--model", "toi").exit_code == 4
    assert not Path("out.errors.jsonl").exists()


@pytest.mark.usefixtures("quick")
def test_a_server_that_stays_lost_ends_the_run_and_can_be_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.cli.batch.patience.MAX_SILENCE_SECONDS", 0.0)
    write_input(3)
    with scripted(answer(200, completion("x")), lambda server, connection: None) as server:
        result = run("--base-url", server.url, "--concurrency", "1")
    assert result.exit_code == 3
    assert result.stderr.endswith("1 of 3 lines completed; run the same command again to continue.\n")
    assert run().exit_code == 0
    assert len(records()) == 3


@pytest.mark.usefixtures("quick")
def test_a_server_that_was_never_reached_ends_the_run_at_once() -> None:
    write_input(3)
    with scripted(lambda server, connection: None) as server:
        result = run("--base-url", server.url, "--concurrency", "1")
    assert result.exit_code == 3
    assert len(server.requests) == 4  # one line with its retries, and the check whether the server answers at all


@pytest.mark.slow
def test_a_server_that_is_lost_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onward.cli.batch.patience.RECONNECT_SECONDS", 0.01)
    write_input(3)
    good, lost = answer(200, completion("x")), lambda server, connection: None
    with scripted(good, lost, lost, lost, lost, good) as server:
        result = run("--base-url", server.url, "--concurrency", "1")
    assert result.exit_code == 0, result.stderr
    assert len(records()) == 3


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_started_again_completes_the_run(end: signal.Signals) -> None:
    write_input(24, max_tokens=400, ignore_eos=True)
    results = Path("out.jsonl")
    port = str(free_port())
    url = f"http://127.0.0.1:{port}/v1"
    with server_process("--port", port, "--max-rows", "2") as server:
        command = [*COMMAND, "batch", "run", "in.jsonl", "-o", "out.jsonl", "--base-url", url, "--concurrency", "4"]
        batch = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            wait_for(lambda: _lines() >= 5)
            server.popen.send_signal(end)
            server.popen.wait(PATIENCE_SECONDS)
            assert batch.poll() is None and _lines() < 24
            with served("--port", port):
                assert batch.wait(PATIENCE_SECONDS) == 0, batch.communicate()[1]
        finally:
            batch.kill()
            batch.communicate()
    whole = {name: record["response"]["body"]["choices"] for name, record in records().items()}
    results.unlink()
    assert run().exit_code == 0
    assert whole == {name: record["response"]["body"]["choices"] for name, record in records().items()}


@pytest.mark.slow
def test_invalid_lines_do_not_count_as_completed_when_the_connection_fails() -> None:
    write_input(2)
    with Path("in.jsonl").open("a", encoding="utf-8") as file:
        file.write("{\n[]\n")
    result = run("--base-url", "http://127.0.0.1:1/v1")
    assert result.exit_code == 3
    assert result.stderr.endswith(
        "0 of 4 lines completed, 2 not sent, 2 left; run the same command again to continue.\n"
    )


def test_failures_of_another_input_do_not_count() -> None:
    write_input(1)
    Path("in.jsonl").write_text(Path("in.jsonl").read_text(encoding="utf-8") + "{\n", encoding="utf-8")
    assert run().exit_code == 1
    write_input(1)
    result = run()
    assert (result.exit_code, result.stderr) == (0, "Nothing left to do · 1 before\n")


@pytest.mark.parametrize("status", [429, 502, 503])
def test_a_busy_server_is_waited_for(status: int) -> None:
    write_input(2)
    busy = error(status, "Busy.", retry_after_ms="1")
    with scripted(*[busy] * 10, answer(200, completion("x"))) as server:
        result = run("--base-url", server.url)
    assert result.exit_code == 0, result.stderr
    assert len(records()) == 2 and not Path("out.errors.jsonl").exists()


@pytest.mark.slow
def test_a_full_onward_server_completes_every_line() -> None:
    write_input(8, max_tokens=1000, ignore_eos=True)
    with served("--max-rows", "1", "--max-waiting", "1") as url:
        result = run("--base-url", url + "/v1")
    assert result.exit_code == 0, result.stderr
    assert len(records()) == 8


@pytest.mark.parametrize(("status", "code"), [(429, 4), (503, 5)])
def test_a_server_that_stays_busy_ends_the_run_and_loses_no_line(
    status: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onward.cli.batch.patience.MAX_SILENCE_SECONDS", 6.0)
    write_input(3)
    with scripted(answer(200, completion("x")), error(status, "Busy.", retry_after_ms="10")) as server:
        clock = SimpleNamespace(monotonic=lambda: float(len(server.requests)))  # a second per request
        monkeypatch.setattr("onward.cli.batch.patience.time", clock)
        result = run("--base-url", server.url, "--concurrency", "1")
    assert result.exit_code == code
    assert "Busy." in result.stderr
    assert result.stderr.endswith("1 of 3 lines completed; run the same command again to continue.\n")
    assert len(server.requests) > 4
    assert not Path("out.errors.jsonl").exists()
    assert run().exit_code == 0
    assert len(records()) == 3


@pytest.mark.parametrize("headers", [{"retry_after": "121"}, {"x_should_retry": "false"}])
def test_a_busy_server_that_forbids_retries_ends_the_run(headers: dict[str, str]) -> None:
    write_input(3)
    with scripted(error(429, "Your quota is used up.", **headers)) as server:
        result = run("--base-url", server.url, "--concurrency", "1")
    assert (result.exit_code, len(server.requests)) == (4, 1)
    assert result.stderr.endswith("0 of 3 lines completed; run the same command again to continue.\n")


@pytest.mark.parametrize(("status", "code"), [(408, 4), (500, 5), (504, 5)])
def test_a_line_that_a_server_fails_at_is_left_for_the_next_run(status: int, code: int) -> None:
    write_input(3)
    good, broken = answer(200, completion("x")), error(status, "Broken.", retry_after_ms="1")
    with scripted(good, broken, broken, broken, good) as server:
        result = run("--base-url", server.url, "--concurrency", "1")
        assert result.exit_code == code
        assert "Broken." in result.stderr
        assert result.stderr.endswith("2 of 3 lines completed; run the same command again to continue.\n")
        assert set(records()) == {"line 0", "line 2"} and not Path("out.errors.jsonl").exists()
        assert run("--base-url", server.url).exit_code == 0
    assert len(records()) == 3


@pytest.mark.slow
def test_waiting_is_noted_once() -> None:
    write_input(3)
    busy = error(503, "Busy.", retry_after_ms="1")
    with (
        scripted(*[busy] * 20, answer(200, completion("x"))) as server,
        Terminal("batch", "run", "in.jsonl", "-o", "out.jsonl", "--base-url", server.url) as terminal,
    ):
        assert terminal.end() == 0
        assert terminal.screen.count("Busy. Waiting; requests will be retried.") == 1
        assert "Trying again" not in terminal.screen


def test_files_with_other_contents_are_not_changed() -> None:
    write_input(2)
    for theirs in ("my diary\n", '{"custom_id":"x","response":null,"error":"boom"}\n'):
        Path("out.jsonl").write_text(theirs, encoding="utf-8")
        assert "not a batch result" in run().stderr
        assert Path("out.jsonl").read_text(encoding="utf-8") == theirs
    result = onward("batch", "run", "in.jsonl", "-o", "in.jsonl")
    assert result.exit_code == 1 and "is the input" in result.stderr


@pytest.mark.parametrize(
    "tail", ["my diary, without a newline at its end", '{"id": 7, "name": "x"}', '{"id": "batch_r', ""]
)
def test_only_an_incomplete_result_is_removed(tail: str) -> None:
    write_input(2)
    run()
    whole = Path("out.jsonl").read_text(encoding="utf-8")
    Path("out.jsonl").write_text(whole + tail, encoding="utf-8")
    result = run()
    ours = '{"id": "batch_req_'.startswith(tail)
    assert result.exit_code == (0 if ours else 1)
    assert ours or result.stderr.startswith("onward: out.jsonl line 3 is not a batch result: use another file")
    assert Path("out.jsonl").read_text(encoding="utf-8") == (whole if ours else whole + tail)


def test_a_file_of_one_line_that_is_not_a_result_is_not_changed() -> None:
    write_input(2)
    Path("out.jsonl").write_text("the only line", encoding="utf-8")
    assert "not a batch result" in run().stderr
    assert Path("out.jsonl").read_text(encoding="utf-8") == "the only line"


def test_results_go_to_a_regular_file_only() -> None:
    """A pipe stands in for devices such as /dev/full, which a bug in the code under test could replace."""
    write_input(2)
    os.mkfifo("out.jsonl")
    result = run()
    assert result.exit_code == 1
    assert result.stderr.startswith("onward: out.jsonl is not a regular file; ")
    assert result.stderr.count("\n") == 1
    assert Path("out.jsonl").is_fifo()


def test_an_empty_file_that_was_there_before_stays() -> None:
    write_input(1)
    Path("errors.jsonl").touch()
    assert run("--errors", "errors.jsonl").exit_code == 0
    assert Path("errors.jsonl").exists()
    Path("out.jsonl").write_text("", encoding="utf-8")
    assert run("--model", "toi").exit_code == 4
    assert Path("out.jsonl").exists()


def test_results_and_rejected_lines_go_to_two_files() -> None:
    write_input(1)
    result = run("--errors", "./out.jsonl")
    assert result.exit_code == 1
    assert result.stderr == "onward: out.jsonl is for the results: set --errors to another file.\n"


@pytest.mark.slow
def test_a_full_disk_is_an_error_with_the_files_name_and_loses_no_line() -> None:
    write_input(20)
    limit = "import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); "
    command = f"{limit}import sys; sys.argv[0] = 'onward'; runpy.run_module('onward', run_name='__main__')"
    arguments = ["batch", "run", "in.jsonl", "-o", "out.jsonl"]
    done = subprocess.run([sys.executable, "-c", command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    refused = r"onward: out\.jsonl cannot be written: File too large; \d+\.\d kB are needed there\.\n"
    assert re.match(refused, done.stderr), done.stderr
    assert Path("out.jsonl").read_text(encoding="utf-8").endswith("\n")
    assert run().exit_code == 0
    assert len(records()) == 20


def test_two_runs_do_not_share_a_file() -> None:
    write_input(2)
    holder = "import fcntl, sys; f = open('out.jsonl', 'a'); fcntl.flock(f, 2); print(1, flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdout.readline()
        assert "Another run is writing out.jsonl" in run().stderr
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(PATIENCE_SECONDS)


def test_a_batch_runs_on_a_file_system_without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: int) -> bool:
        raise NoLocks

    monkeypatch.setattr("onward.cli.batch.journal.try_lock", no_locks)
    write_input(2)
    assert run().exit_code == 0 and len(records()) == 2


@pytest.mark.slow
def test_a_queue_that_is_full_is_waited_for() -> None:
    write_input(24, n=128)
    assert run("--concurrency", "24").exit_code == 0
    assert {each["response"]["status_code"] for each in records().values()} == {200}


def test_a_hub_that_cannot_be_reached_ends_the_run_and_loses_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise HubUnreachable("The hub cannot be reached.")

    write_input(2, model="org/model")
    monkeypatch.setattr("onward.cli.source.local.resolve_model", unreachable)
    result = run()
    assert result.exit_code == 3
    assert "The hub cannot be reached." in result.stderr
    assert not Path("out.jsonl").exists() and not Path("out.errors.jsonl").exists()


def test_a_dangling_link_is_written_through_and_its_target_cleaned_up() -> None:
    write_input(1, n="many")
    Path("out.jsonl").symlink_to("elsewhere.jsonl")
    assert run().exit_code == 1
    assert Path("out.jsonl").is_symlink() and not Path("elsewhere.jsonl").exists()
