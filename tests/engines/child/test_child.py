"""Engines in real processes: they start, compute, stop, die with their parent, and say how they ended."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onward.compose.engine import EngineConfig
from onward.compose.spare import WORKER
from onward.engine.client import CancelChoice, Stop, Submit
from onward.engine.events import Decoded
from onward.engines.child.child import ChildEngine, ChildLauncher, SpareProcess
from onward.engines.child.link import StepReport
from onward.errors import ModelFolderError, SetupError
from onward.ipc.spawn import how_it_ended
from onward.model_files.toy import ToyTokenizer
from onward.model_files.vocabulary import PackedVocabulary
from onward.models.resolve import resolve
from onward.settings import Settings
from tests.engine.harness import Results, make_job, run_alone
from tests.processes import is_running
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")


def configuration(*, context_length: int = 0, **changes: Any) -> bytes:
    config = EngineConfig.create(resolve("toy"), Settings(model=("toy",), context_length=context_length))
    return msgspec.structs.replace(config, **changes).encode()


def vocabulary() -> bytes:
    return PackedVocabulary.create(ToyTokenizer()).encode()


class Reports:
    """Collects what a child reports, and lets a test wait for it."""

    def __init__(self) -> None:
        self.reports: list[StepReport] = []
        self.lost: list[str] = []
        self._changed = threading.Condition()

    def on_report(self, report: StepReport) -> None:
        with self._changed:
            self.reports.append(report)
            self._changed.notify_all()

    def on_lost(self, reason: str) -> None:
        with self._changed:
            self.lost.append(reason)
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=PATIENCE_SECONDS)

    def decoded(self) -> list[Decoded]:
        return [event for report in self.reports for event in report.events if isinstance(event, Decoded)]


@contextmanager
def child(*, spare: SpareProcess | None = None, **changes: Any) -> Iterator[tuple[ChildEngine, Reports]]:
    reports = Reports()
    launch = ChildLauncher(WORKER, configuration(**changes), vocabulary, spare=spare)
    engine = launch(reports.on_report, reports.on_lost)
    try:
        yield engine, reports
    finally:
        engine.close()


def wait_until_gone(pid: int) -> None:
    wait_for(lambda: not is_running(pid), f"the end of process {pid}")


def test_a_child_computes_what_a_thread_computes_and_reports_each_step_once() -> None:
    job = make_job(max_tokens=20, choices=2, logprobs=2)
    with child() as (engine, reports):
        engine.send(Submit([job]))
        reports.wait_for(lambda: sum(bool(event.finish_reason) for event in reports.decoded()) == 2)
        reports.wait_for(lambda: reports.reports[-1].is_idle)
        results = Results({job.id: job})
        for report in reports.reports:
            results.take(report.events)
        assert results.jobs[job.id].bits == run_alone(job).bits
        assert [each for report in reports.reports for each in report.admitted] == [job.id]
        assert reports.reports[0].is_idle and reports.reports[-1].load.num_used_blocks == 0
        busy = [report.load.num_steps for report in reports.reports if not report.is_idle]
        assert busy == sorted(set(busy)), "a step was reported twice"
        used = reports.reports[-1].load.process
        assert used is not None and used.cpu_seconds > 0
        assert used.resident_bytes > 10 * 2**20 or not sys.platform.startswith("linux")
    assert reports.lost == []


@pytest.mark.slow
def test_a_choice_is_cancelled() -> None:
    job = make_job(max_tokens=100_000, choices=1)
    with child() as (engine, reports):
        engine.send(Submit([job]))
        reports.wait_for(reports.decoded)
        engine.send(CancelChoice(job.id, 0))
        reports.wait_for(lambda: reports.reports[-1].is_idle)
        assert reports.reports[-1].load.num_used_blocks == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)])
def test_how_a_child_ended_is_reported_at_once(number: signal.Signals) -> None:
    with child() as (engine, reports):
        os.kill(engine.pid, number)
        reports.wait_for(lambda: reports.lost)
        engine.send(Submit([make_job(max_tokens=3)]))  # ignored
    assert len(reports.lost) == 1 and number.name in reports.lost[0]


@pytest.mark.slow
def test_a_child_that_is_stopped_or_hangs_can_be_killed() -> None:
    with child() as (engine, reports):
        os.kill(engine.pid, signal.SIGSTOP)
        engine.kill("it hangs")
        reports.wait_for(lambda: reports.lost)
    assert reports.lost == ["it hangs"]


@pytest.mark.slow
def test_signals_of_a_terminal_and_a_service_manager_do_not_end_a_child() -> None:
    with child() as (engine, reports):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(engine.pid, number)
        job = make_job(max_tokens=3)
        engine.send(Submit([job]))
        reports.wait_for(lambda: any(event.finish_reason for event in reports.decoded()))
    assert reports.lost == []


@pytest.mark.slow
def test_closing_waits_until_the_process_has_ended_and_leaves_nothing() -> None:
    def descriptors() -> set[tuple[str, str]]:
        links = [each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]  # the listing's own is left out
        return {(each.name, str(each.readlink())) for each in links if each.is_symlink()}

    before = descriptors()
    with child() as (engine, _):
        pid = engine.pid
        assert is_running(pid)
    assert not is_running(pid) and descriptors() <= before, "garbage of other tests may close some meanwhile"
    engine.close()
    engine.send(Stop())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"context_length": 10**9}, "was made for"),
        ({"path": "/nowhere"}, "/nowhere"),
        ({"speculate": "often"}, "could not be loaded"),
    ],
)
def test_an_engine_that_cannot_be_loaded_is_an_error(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SetupError, match=words) as caught:
        ChildLauncher(WORKER, configuration(**changes), vocabulary)(lambda report: None, lambda reason: None)
    assert isinstance(caught.value, ModelFolderError) == ("path" in changes)


def test_a_tokenizer_that_cannot_be_loaded_ends_the_process() -> None:
    def fail() -> bytes:
        raise SetupError("The tokenizer is broken.")

    with SpareProcess(WORKER) as spare:
        assert (pid := spare.pid) is not None
        launch = ChildLauncher(WORKER, configuration(), fail, spare=spare)
        with pytest.raises(SetupError, match="The tokenizer is broken"):
            launch(lambda report: None, lambda reason: None)
    assert not is_running(pid)


@pytest.mark.slow
def test_a_spare_process_is_taken_once_and_ends_with_its_context() -> None:
    reports = Reports()
    with SpareProcess(WORKER) as spare, child(spare=spare) as (engine, _):
        assert spare.take(configuration()) is None
        other = ChildLauncher(WORKER, configuration(), vocabulary, spare=spare)(reports.on_report, reports.on_lost)
        assert other.pid != engine.pid
        other.close()
    with SpareProcess(WORKER) as spare:
        assert spare.pid is not None and is_running(pid := spare.pid)
    assert not is_running(pid) and spare.pid is None


@pytest.mark.slow
def test_a_spare_process_that_was_told_what_to_load_is_taken_for_that_alone() -> None:
    with SpareProcess(WORKER) as spare:
        spare.configure(configuration())
        told = spare.pid
        with child(spare=spare) as (engine, _):
            assert engine.pid == told
    with SpareProcess(WORKER) as spare:
        assert (pid := spare.pid) is not None
        spare.configure(configuration(share_prefixes=False))
        with child(spare=spare) as (engine, _):
            assert engine.pid != pid
            assert not is_running(pid)


@pytest.mark.slow
def test_a_spare_process_that_began_before_all_files_were_there_is_not_taken(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    with SpareProcess(WORKER) as spare:
        spare.configure(configuration(path=str(folder)))
        assert spare.pid is not None
        wait_until_gone(spare.pid)
        shutil.copytree(resolve("toy").path, folder)
        with child(spare=spare, path=str(folder)) as (engine, _):
            assert is_running(engine.pid)


@pytest.mark.slow
def test_a_spare_process_that_read_the_files_too_early_is_replaced_even_if_it_has_not_ended_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "m"
    monkeypatch.setattr(SpareProcess, "_has_ended", False)
    with SpareProcess(WORKER) as spare:
        spare.configure(configuration(path=str(folder)))
        assert spare.pid is not None
        wait_until_gone(too_early := spare.pid)
        shutil.copytree(resolve("toy").path, folder)
        with child(spare=spare, path=str(folder)) as (engine, _):
            assert engine.pid != too_early and is_running(engine.pid)


@pytest.mark.parametrize("command", [("/nowhere/python",), (sys.executable, "-c", "raise SystemExit(3)")])
def test_a_process_that_does_not_start_is_an_error(command: tuple[str, ...]) -> None:
    with pytest.raises(SetupError, match=r"cannot be started|exit code 3"):
        ChildLauncher(command, b"", vocabulary)(lambda report: None, lambda reason: None)


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True])
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a stopped process is killed on Linux only")
def test_a_child_ends_with_its_parent(is_stopped: bool) -> None:
    """A server that is killed leaves nothing, not even an engine that hangs."""
    script = (
        "import sys, time; from tests.engines.child.test_child import *; "
        "running = child(); print(running.__enter__()[0].pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as output:
        pid = int(output.readline())
    if is_stopped:
        os.kill(pid, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    wait_until_gone(pid)


@pytest.mark.slow
def test_the_log_of_a_child_is_written_by_its_parent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("onward"), "propagate", True)
    with pytest.raises(SetupError, match="could not be loaded: ValidationError"):
        child(model_id=3).__enter__()
    assert "the engine could not be loaded" in caplog.text and "Traceback" in caplog.text


def test_how_a_process_ended_is_described_in_words() -> None:
    assert how_it_ended(3) == "its process ended with exit code 3"
    assert how_it_ended(-9) == "its process was ended by SIGKILL; the system does this when memory runs out"
    assert "a mapped file was cut short" in how_it_ended(-signal.SIGBUS)
    assert how_it_ended(-99) == "its process was ended by signal 99"
