"""Programs under a keeper: what they print, how they ended, and that nothing of them is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from onward.engines.programs.process import MAX_LINE_CHARACTERS, ProgramProcess, lines_of
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs are not started on Windows")


@pytest.fixture
def run() -> Iterator[Callable[..., ProgramProcess]]:
    started: list[ProgramProcess] = []

    def start(*command: str, folder: Path | None = None) -> ProgramProcess:
        started.append(ProgramProcess(command, dict(os.environ), lambda line: None, folder))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        assert each.wait(PATIENCE_SECONDS)


def has_ended(group: int) -> bool:
    """Whether no process of a group lives, zombies aside, which another process has to reap."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            state, _, owner, *_ = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if int(owner) == group and state != "Z":
                return False
    return True


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"o", b"ne\r", b"\n", b"two"], ["one", "two"]),
        ([b"10%\r20%\r30%\n"], ["10%", "20%", "30%"]),
        ([b"\x1b[32mgreen\x1b[0m\n"], ["green"]),
        ([b"\x00\xff\n"], ["�"]),
        ([b" \n\n"], []),
        ([b"x" * 1_000_000, b"y" * 1_000_000, b"\nend\n"], ["x" * MAX_LINE_CHARACTERS, "end"]),
    ],
)
def test_what_a_program_prints_becomes_short_printable_lines(chunks: list[bytes], lines: list[str]) -> None:
    assert list(lines_of(iter(chunks))) == lines


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["/nowhere/program"], "it does not exist (its last line: '/nowhere/program cannot be run: No such file or"),
        (["sh", "-c", "exit 3"], "it ended with exit code 3"),
        (["sh", "-c", "echo; echo Bye.; exit 3"], "it ended with exit code 3 (its last line: 'Bye.')"),
        (["sh", "-c", "kill -SEGV $$"], "it was ended by SIGSEGV"),
        (["sh", "-c", "kill -ILL $$"], "it uses instructions that this processor does not have"),
        (["sh", "-c", "echo CUDA out of memory; exit 1"], "memory ran out (its last line: 'CUDA out of memory')"),
        (["sh", "-c", "echo error: unrecognized arguments: --uds; exit 2"], "it does not know a flag: it is too old"),
        (["sh", "-c", "echo bind: Address already in use; exit 1"], "its address is in use"),
        (
            ["sh", "-c", "echo 'ValueError: Free memory on device (1/80 GiB) is less than desired'; echo Bye; exit 1"],
            "other programs use the memory of its GPU (it said: 'ValueError: Free memory on device (1/80 GiB)",
        ),
        (
            [
                "sh",
                "-c",
                "echo 'x ValueError: no block of 16'; echo 'OSError: See root cause above.'; exit 1",
            ],
            "it ended with exit code 1 (it said: 'ValueError: no block of 16')",
        ),
    ],
)
def test_how_a_program_ended_is_said_in_words(
    run: Callable[..., ProgramProcess], command: list[str], reason: str
) -> None:
    process = run(*command)
    assert process.wait(PATIENCE_SECONDS)
    assert process.reason.startswith(reason)


def test_a_file_for_another_system_cannot_be_run(run: Callable[..., ProgramProcess], tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF but not really")
    program.chmod(0o755)
    process = run(str(program))
    assert process.wait(PATIENCE_SECONDS)
    assert process.reason.startswith("it is not a program that can run here")


def test_stopping_ends_what_the_program_started_too(run: Callable[..., ProgramProcess], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    process = run("sh", "-c", "sleep 600 & sleep 600", folder=tmp_path / "folder")
    process.stop()
    assert process.has_ended
    wait_for(lambda: has_ended(process.pid))
    assert not (tmp_path / "folder").exists()


def test_a_program_that_ended_leaves_no_process_of_its_own(run: Callable[..., ProgramProcess]) -> None:
    process = run("sh", "-c", "sleep 600 & exit 0")
    assert process.wait(PATIENCE_SECONDS)
    wait_for(lambda: has_ended(process.pid))


def test_when_the_keeper_is_killed_the_program_ends(run: Callable[..., ProgramProcess]) -> None:
    process = run("sleep", "600")
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(PATIENCE_SECONDS)
    wait_for(lambda: has_ended(process.pid))


SERVER = """
import os, sys, time
from pathlib import Path
from onward.engines.programs.process import ProgramProcess

sys.stdout.reconfigure(line_buffering=True)
process = ProgramProcess(["sh", "-c", "echo up; sleep 600"], dict(os.environ), print, Path(sys.argv[1]))
print(process.pid)
time.sleep(600)
"""


@pytest.mark.parametrize("kills_children", [False, True])
def test_kill_9_of_the_server_ends_the_program(tmp_path: Path, kills_children: bool) -> None:
    """Also if its children are killed first, as Ray kills those of a replica that it ends."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", SERVER, str(folder)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        lines = [server.stdout.readline().strip(), server.stdout.readline().strip()]  # the program is up
        group = next(int(line) for line in lines if line.isdigit())
        server.send_signal(signal.SIGSTOP)  # so that it does not notice
        os.waitid(os.P_PID, server.pid, os.WSTOPPED)  # its threads go on until then
        if kills_children:
            os.kill(group, signal.SIGKILL)
        server.kill()
    wait_for(lambda: has_ended(group))
    assert not folder.exists()
