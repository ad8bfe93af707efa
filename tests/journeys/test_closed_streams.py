"""Standard streams that are closed from the start (`>&-`): an error message and an exit code, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.terminal import COMMAND
from tests.examples import slow_but

TOY = ("completions", "create", "Once", "--model", "toy", "--max-tokens", "4")
needs_full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
CLOSED = "onward: Standard output is closed.\n"


def shell(closing: str, *command: str) -> list[str]:
    """The command that runs `command` with streams closed, as a shell spells it."""
    return ["sh", "-c", f'exec "$@" {closing}', "sh", *command]


def closed(closing: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(shell(closing, *COMMAND, *arguments), capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        TOY,
        (*TOY, "--stream", "--format", "text"),
        (*TOY, "--dry-run"),
        ("models", "list"),
        ("tokenize", "-m", "toy", "a"),
        ("doctor",),
        ("config", "show"),
        ("completion", "bash"),
        ("help", "serve"),
        ("serve", "--help"),
        ("--help",),
        ("version",),
        ("--version",),
    ],
    ids=" ".join,
)
def test_a_result_that_cannot_be_written_is_an_error(arguments: tuple[str, ...]) -> None:
    done = closed("</dev/null >&-", *arguments)
    assert (done.returncode, done.stderr) == (1, CLOSED)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((*TOY, "--temperature", "9"), 4),
        pytest.param(("models", "show", "nowhere"), 4, marks=pytest.mark.slow),
        pytest.param(("srve",), 2, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("closing", slow_but(["<&- >&- 2>&-"], ["2>&-", ">&- 2>&-", "<&- >&- 2>&-"]))
def test_an_error_that_cannot_be_printed_keeps_its_code(closing: str, arguments: tuple[str, ...], code: int) -> None:
    done = closed(closing, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [TOY, ("tokenize", "-m", "toy", "a"), ("models", "list")])
def test_a_result_is_written_when_stderr_is_closed(arguments: tuple[str, ...]) -> None:
    done = closed("</dev/null 2>&-", *arguments)
    assert json.loads(done.stdout)
    assert done.returncode == 0


def test_closed_stdin_is_empty_and_cannot_be_named() -> None:
    done = closed("<&-", *TOY, "--dry-run")
    assert json.loads(done.stdout)["prompt"] == "Once"
    done = closed("<&-", "completions", "create", "--prompt", "-")
    assert done.returncode == 2
    assert "--prompt reads standard input, which is closed." in done.stderr


def test_no_file_takes_the_place_of_a_closed_stream() -> None:
    code = (
        "import sys, onward.stdio as stdio; stdio.replace_closed_streams(); file = open('opened', 'w');"
        "print(file.fileno(), sys.stdout.fileno(), sys.stderr.fileno(), file=file)"
    )
    subprocess.run(shell("<&- >&- 2>&-", sys.executable, "-c", code), check=True)
    assert Path("opened").read_text(encoding="utf-8") == "3 1 2\n"


@pytest.mark.slow
@needs_full_disk
@pytest.mark.parametrize(("closing", "stream"), [(">&-", "stderr"), (">/dev/full", "stderr"), ("2>&-", "stdout")])
def test_a_server_runs_with_closed_streams(closing: str, stream: str) -> None:
    command = shell(closing, *COMMAND, "serve", "--port", "0", "--model", "toy", "--drain", "0")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        said = []
        for line in getattr(process, stream):
            said.append(line)
            if "Onward is ready at " in line:
                break
        process.terminate()
        said += getattr(process, stream).readlines()
        assert process.wait(60) == 0, said
    assert "Onward is ready at http://127.0.0.1:" in "".join(said)
    assert "Traceback" not in "".join(said)


@needs_full_disk
def test_help_on_a_full_disk_is_an_error() -> None:
    done = closed(">/dev/full", "--help")
    assert (done.returncode, done.stderr) == (1, "onward: The output: No space left on device.\n")


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C needs no descriptors there")
def test_ctrl_c_does_not_take_the_descriptors_of_closed_streams() -> None:
    code = (
        "import os, sys, onward.cli.interrupt as interrupt, onward.cli.main as main;"
        "end = os._exit; file = lambda: open('descriptors', 'w').write(str(min(interrupt._pipe)));"
        "os._exit = lambda code: (file(), end(code)); sys.argv = ['onward', 'zzz']; main.main()"
    )
    done = subprocess.run(shell("<&- >&- 2>&-", sys.executable, "-c", code), check=False)
    assert done.returncode == 2
    assert int(Path("descriptors").read_text(encoding="utf-8")) > 2
