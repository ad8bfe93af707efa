"""Workers of pytest-xdist collect a file of tests when they run it. Otherwise each of them would import all tests and
make items of them first, which takes seconds of every processor. They also report less: of a test that passed, its call
and slow phases, and many such tests in one message, because each message wakes the controller, which takes a processor
from a worker. And the time limit of pytest's faulthandler is reset every few seconds, not for every test: each reset
ends a thread, which takes milliseconds on a busy machine.
"""

from __future__ import annotations

import faulthandler
import gc
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from _pytest.runner import runtestprotocol

LONG_SECONDS = 0.01
"""Preparations that take longer are reported: they may be among the slowest (`--durations`)."""
LIMIT_EVERY_SECONDS = 10.0
"""How often the time limit is set anew."""
REPORT_EVERY_SECONDS = 0.5
"""How long reports of tests that passed wait to be sent with a later one."""

FIRST = (
    "runtimes/native/test_model.py",
    "parity/test_parity.py",
    "engines/programs/test_engine.py",
    "laws/test_states.py",
    "engines/upstreams/test_engine_hostile.py",
    "service/test_batch_runner.py",
    "engine/test_draft_model.py",
    "laws/test_real_model.py",
    "kernels/test_products.py",
    "engines/upstreams/test_pool.py",
    "laws/test_real_numbers.py",
    "kernels/test_compiler_processes.py",
    "runtimes/native/test_predictor.py",
    "parity/test_openapi.py",
    "engines/cluster/test_engine.py",
    "engine/test_constraints_elsewhere.py",
    "journeys/test_hostile_constraints.py",
    "journeys/test_held_threads.py",
    "cli/batch/test_run.py",
    "kernels/test_attention.py",
)
"""Files that take more than a second, one for each worker in turn: the last of a run, they would leave processors
idle. Only one of the first ones computes models, for whose kernels two would wait while each compiles the other's."""


class _File(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield _WholeFile.from_parent(self, name="all")


class _WholeFile(pytest.Item):
    """The unit of work that workers are sent: all tests of a file."""

    def runtest(self) -> None:
        pass


class WholeFiles:
    """A plugin of a worker. Its items are files until they are run."""

    def __init__(self) -> None:
        self._earlier: list[tuple[object, ...]] = []
        """Reports to be sent with the next one."""
        self._reported = time.monotonic()
        self._is_last = True
        """Whether the test that runs is the last one of its file."""

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.File:
        return _File.from_parent(parent, path=module_path)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> Generator[None, object, object]:
        """Keep whole files, whatever tests are selected by their marks and names, those of FIRST early."""
        files = [item for item in items if isinstance(item, _WholeFile)]
        items[:] = [item for item in items if not isinstance(item, _WholeFile)]
        result = yield
        items += _in_order(files, config.workerinput["workercount"])  # type: ignore[attr-defined]
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Collect and run the tests of a file. The fixtures of its folder and of the session stay for the next one."""
        if not isinstance(item, _WholeFile):
            return self._run(item, nextitem)
        session, plugins = item.session, item.config.pluginmanager
        protocol = plugins.subset_hook_caller("pytest_runtest_protocol", [plugins.get_plugin("faulthandler")])
        tests = _collect(item)
        place, limited = session.items.index(item), time.monotonic()
        for test, following in zip(tests, [*tests[1:], nextitem], strict=False):
            session.items[place] = test  # the worker compares it with the reports
            self._is_last = test is tests[-1]
            if time.monotonic() - limited > LIMIT_EVERY_SECONDS:
                limited = time.monotonic()
                _limit(item.config)
            protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session.items[place] = item
        if not tests:
            runtestprotocol(item, log=False, nextitem=nextitem)  # for the fixtures that end here
        return True

    def _run(self, test: pytest.Item, nextitem: pytest.Item | None) -> bool:
        reports = [
            report
            for report in runtestprotocol(test, nextitem=nextitem, log=False)
            if report.when == "call" or not report.passed or report.duration > LONG_SECONDS
        ]
        for report in reports:
            is_due = self._is_last and report is reports[-1]
            is_due = is_due or time.monotonic() - self._reported > REPORT_EVERY_SECONDS
            if report.passed and not is_due:
                self._earlier.append((report.nodeid, report.location, report.when, report.sections, report.duration))
            else:
                report.earlier, self._earlier = self._earlier, []  # type: ignore[attr-defined]
                test.ihook.pytest_runtest_logreport(report=report)
                self._reported = time.monotonic()
        return True


class EarlierReports:
    """A plugin of the controller: reports that came with a later one are as if they had come before it."""

    def __init__(self, config: pytest.Config) -> None:
        self._hook = config.hook

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for nodeid, location, when, sections, duration in vars(report).pop("earlier", ()):
            earlier = pytest.TestReport(nodeid, location, {}, "passed", None, when, sections, duration)
            earlier.node = report.node  # type: ignore[attr-defined]
            self._hook.pytest_runtest_logreport(report=earlier)


def _in_order(files: list[_WholeFile], num_workers: int) -> list[_WholeFile]:
    """Return files in the order in which workers get them, a share each: those of FIRST begin the shares."""
    first = [each for name in FIRST for each in files if each.path.as_posix().endswith(name)]
    rest = [each for each in files if each not in first]
    ordered: list[_WholeFile] = []
    for worker in range(num_workers):
        own = first[worker::num_workers]
        size = max(0, (len(files) - len(ordered)) // (num_workers - worker) - len(own))
        ordered += [*own, *rest[:size]]
        rest = rest[size:]
    return ordered + rest


def _limit(config: pytest.Config) -> None:
    """Reset the time limit, as pytest's faulthandler did for the file."""
    if seconds := float(config.getini("faulthandler_timeout")):
        exits = config.getini("faulthandler_exit_on_timeout")
        faulthandler.dump_traceback_later(seconds, exit=exits, file=config.stash[fault_handler_stderr_fd_key])


def _collect(item: _WholeFile) -> list[pytest.Item]:
    session, file = item.session, item.parent
    assert file is not None and file.parent is not None
    gc.disable()
    try:
        tests = list(session.genitems(pytest.Module.from_parent(file.parent, path=item.path)))
        session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=tests)
        gc.freeze()
    finally:
        gc.enable()
    return tests
