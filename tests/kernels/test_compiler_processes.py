"""Modules that several processes compile: the same objects, whatever becomes of the processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from onward.ipc.spawn import spawn
from onward.ipc.worker_end import OOM_SCORE_OFFSET
from onward.kernels import compiler_processes
from onward.kernels.compiler import compile_object
from onward.kernels.compiler_processes import MIN_JOBS, WORKER, share
from onward.kernels.function import Function, Module
from onward.kernels.targets import FORMS, Target, host
from onward.kernels.values import I64
from tests.processes import is_running
from tests.waiting import PATIENCE_SECONDS, wait_for

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
COUNT = 2 * MIN_JOBS
NO_PROGRAM = ("a-program-that-is-not-there",)
ENDS = (sys.executable, "-c", "")
SENDS_BACK_LATE = (
    sys.executable, "-c",
    "from onward.ipc.frames import FrameReader, write_frame\n"
    "from onward.ipc.worker_end import take_connection\n"
    "down, up = take_connection()\n"
    "for payload in FrameReader(down):\n"
    "    write_frame(up, payload)\n",
)  # fmt: skip
SAYS_NO_OBJECT = (sys.executable, "-c", "import os\nos.read(0, 1)\nos.write(0, bytes(8))")


def module_that_adds(number: int) -> str:
    module = Module("test")
    f = Function(module, f"add_{number}", [I64], I64, exported=True)
    f.ret(f.args[0] + number)
    return module.text()


def compiled(texts: Sequence[str]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}

    def job(index: int, compile_text: Callable[[str, Target], bytes]) -> None:
        found[index] = compile_text(texts[index], host())

    share([partial(job, index) for index in range(len(texts))], compile_object)
    return found


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Commands of the processes that were started, on a machine with three cores."""
    commands: list[Sequence[str]] = []

    def spawn_noted(command: Sequence[str]) -> object:
        commands.append(command)
        return spawn(command)

    monkeypatch.setattr(compiler_processes, "spawn", spawn_noted)
    monkeypatch.setattr(compiler_processes, "compute_threads", lambda: 3)
    return commands


@pytest.mark.parametrize("command", [WORKER, NO_PROGRAM, ENDS, SAYS_NO_OBJECT])
def test_objects_are_those_of_one_process(
    command: Sequence[str], started: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler_processes, "WORKER", command)
    texts = [module_that_adds(number) for number in range(COUNT)]
    found = compiled(texts)
    assert started == [command, command]
    assert [found[index] for index in range(COUNT)] == [compile_object(text, host()) for text in texts]


def test_an_object_that_comes_late_is_not_taken_for_that_of_the_next_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_processes, "WORKER", SENDS_BACK_LATE)
    helper = compiler_processes._Helper()
    try:
        monkeypatch.setattr(compiler_processes, "_SECONDS", 0.0)
        with pytest.raises(compiler_processes._Lost):
            helper.compile("the first", host())
        monkeypatch.setattr(compiler_processes, "_SECONDS", PATIENCE_SECONDS)
        with pytest.raises(compiler_processes._Lost):
            helper.compile("the second", host())
    finally:
        helper.close()


def test_a_process_compiles_for_other_processors() -> None:
    target = FORMS["neon"]
    helper = compiler_processes._Helper()
    try:
        for text in (module_that_adds(1), module_that_adds(2)):
            assert helper.compile(text, target) == compile_object(text, target)
    finally:
        helper.close()


@on_linux
def test_a_process_that_compiles_is_ended_before_its_parent_where_memory_runs_out() -> None:
    helper = compiler_processes._Helper()
    try:
        helper.compile(module_that_adds(1), host())
        helpers, own = (
            int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="utf-8"))
            for pid in (helper._process.popen.pid, "self")
        )
        assert helpers == min(own + OOM_SCORE_OFFSET, 1000)
    finally:
        helper.close()


@on_linux
def test_a_process_that_compiles_ends_with_a_parent_that_is_killed() -> None:
    program = (
        "import time\n"
        "from onward.kernels.compiler_processes import _Helper\n"
        "helper = _Helper()\n"
        "print(helper._process.popen.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    wait_for(lambda: not is_running(pid))


def test_few_modules_start_no_process(started: list[Sequence[str]]) -> None:
    assert len(compiled([module_that_adds(number) for number in range(MIN_JOBS - 1)])) == MIN_JOBS - 1
    assert not started


def test_an_invalid_module_is_an_error(started: list[Sequence[str]]) -> None:
    with pytest.raises(RuntimeError):
        compiled(["no module"] * COUNT)
