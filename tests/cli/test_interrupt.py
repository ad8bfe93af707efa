"""Ctrl-C: exit code 130 and no message, whatever a command is doing; a ready server drains and exits with 0.

The first 10 to 15 ms of a process, in which the interpreter starts and finds the command, cannot be covered: Ctrl-C
then prints Python's own traceback. The tests wait until they are over; one checks what is imported before the handler.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import slow_but
from tests.waiting import PATIENCE_SECONDS, wait_for

from .terminal import Terminal

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts threads in /proc")

SERVE = ("serve", "--port", "0")
CREATE = ("completions", "create", "Once", "--max-tokens", "900", "--ignore-eos", "--n", "128")
MAX_START_SECONDS = 1.5
"""Ctrl-C is pressed at a random time within this period."""
NATIVE_CALL = "__import__('hashlib').pbkdf2_hmac('sha256', b'', b'', 1 << 30)"
"""Takes minutes without running Python code on the main thread."""


def wait_for_handler(pid: int) -> None:
    """Return once the command handles Ctrl-C: until then the interpreter is starting, and prints a traceback."""

    def num_threads() -> int:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        return int(next(line for line in lines if line.startswith("Threads:")).split()[1])

    wait_for(lambda: num_threads() > 1, "the command to handle Ctrl-C")


def interrupted(command: tuple[str, ...], delay: float) -> tuple[int, str]:
    """(exit code, screen) of a command whose terminal gets Ctrl-C after `delay` seconds."""
    with Terminal(*command) as terminal:
        wait_for_handler(terminal.process.pid)
        terminal.read_for(delay)
        terminal.press(b"\x03")
        return terminal.end(), terminal.screen


def check_interrupted(command: tuple[str, ...], delay: float) -> None:
    code, screen = interrupted(command, delay)
    words = f"Ctrl-C after {delay:.3f} s"
    assert "Traceback" not in screen, words
    if command is SERVE and "Onward is ready" in screen:
        assert code == 0, words
    else:
        assert code == 130, words
        assert not screen or command is CREATE, words


@pytest.mark.parametrize("command", [SERVE, CREATE], ids=["serve", "create"])
@pytest.mark.parametrize("delay", slow_but([0.0, 0.2], [0.0, 0.05, 0.2, 0.4, 0.8]))
def test_ctrl_c_during_a_start_is_quiet(command: tuple[str, ...], delay: float) -> None:
    check_interrupted(command, delay)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "tries"),
    [
        pytest.param(SERVE, 8, id="serve"),
        pytest.param(CREATE, 12, id="create"),
        pytest.param(SERVE, 24, id="serve, often", marks=pytest.mark.companion),
        pytest.param(CREATE, 60, id="create, often", marks=pytest.mark.companion),
    ],
)
def test_ctrl_c_at_any_time_of_a_start_is_quiet(command: tuple[str, ...], tries: int) -> None:
    """One random time in each of several equal parts of the period."""
    times = random.Random(20)
    for number in range(tries):
        check_interrupted(command, (number + times.random()) * MAX_START_SECONDS / tries)


def test_the_handler_is_installed_before_anything_else_is_imported() -> None:
    lines = [
        "import sys; before = set(sys.modules)",
        "import onward.cli.main, onward.cli.interrupt as interrupt",
        "print(*sorted(set(sys.modules) - before))",
        "interrupt.signal.signal = lambda *_: (print(*sorted(set(sys.modules) - before)), interrupt.os._exit(0))",
        "sys.stdout.reconfigure(line_buffering=True)",
        "onward.cli.main.main()",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    needed = "onward onward.cli onward.cli.interrupt onward.cli.main"
    assert done.stdout.splitlines() == [needed, needed]


def program(*lines: str) -> subprocess.Popen[str]:
    """A program that has printed "ready"."""
    code = "\n".join(["import signal, time", "from onward.cli.interrupt import *", *lines])
    started = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert line_of(started) == "ready\n"
    return started


def line_of(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return started.stdout.readline()


def rest_of(started: subprocess.Popen[str]) -> str:
    """The rest of the program's output."""
    started.wait(PATIENCE_SECONDS)
    assert started.stdout is not None
    return started.stdout.read()


READY = "print('ready', flush=True)"


def test_ctrl_c_does_not_wait_for_native_code() -> None:
    with program("exit_on_interrupt()", READY, NATIVE_CALL) as started:
        started.send_signal(signal.SIGINT)
        assert rest_of(started) == ""
    assert started.returncode == 130


def test_the_main_thread_ends_the_process_too_if_it_handles_the_second_ctrl_c_first() -> None:
    first = "os.kill(os.getpid(), signal.SIGINT)\n for _ in range(600): time.sleep(0.01)"
    second = "print('saved', flush=True)\n signal.getsignal(signal.SIGINT)(signal.SIGINT, None)"
    saving = f"try:\n {first}\nexcept KeyboardInterrupt:\n {second}"
    with program("import os", "exit_on_interrupt()", "raise_on_interrupt()", READY, saving) as started:
        assert rest_of(started) == "saved\n"
    assert started.returncode == 130


def test_the_second_ctrl_c_does_not_wait_for_a_command_that_saves_its_progress() -> None:
    saving = [
        "def stay(*_): pass",
        f"try:\n {READY}\n for _ in range(6000): time.sleep(0.01)",
        f"except KeyboardInterrupt:\n signal.signal(signal.SIGINT, stay)\n print('saved', flush=True)\n {NATIVE_CALL}",
    ]
    with program("exit_on_interrupt()", "raise_on_interrupt()", *saving) as started:
        started.send_signal(signal.SIGINT)
        assert line_of(started) == "saved\n"
        started.send_signal(signal.SIGINT)
        assert rest_of(started) == ""
    assert started.returncode == 130


def test_a_program_that_calls_commands_keeps_its_own_handler() -> None:
    lines = ("signal.signal(signal.SIGINT, signal.SIG_IGN)", "raise_on_interrupt()", READY)
    with program(*lines, "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)") as started:
        assert rest_of(started) == "True\n"


@pytest.mark.slow
def test_ctrl_c_leaves_the_text_and_clears_the_progress_line() -> None:
    with Terminal(*CREATE) as terminal:
        terminal.wait_for("Once")
        terminal.press(b"\x03")
        assert terminal.end() == 130
    assert terminal.screen.startswith("{bold:── Choice 1 of 128 ──}\n{dim:Once}")
    assert "Loading" not in terminal.screen
    assert "^C\n" in terminal.screen  # a token in flight may follow
