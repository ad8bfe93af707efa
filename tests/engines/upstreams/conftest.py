"""Backends of these tests share the processes that compute grammars: to start one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ReadOnly
from typing import ClassVar

import pytest

from onward.constraints.process import checker, lane
from onward.constraints.process.client import MAX_SECONDS, GrammarProcess
from onward.constraints.process.messages import Advance, Compile, Forget, WorkerReply, WorkerRequest
from onward.ipc.frames import FrameReader
from onward.ipc.spawn import Process
from tests.waiting import PATIENCE_SECONDS


class SharedProcess(GrammarProcess):
    """A pool whose processes are reused after it is closed. A process that is killed while it answers ends, as
    always."""

    idle: ClassVar[dict[ReadOnly[str], list[tuple[Process, FrameReader]]]] = {}
    _choices: set[int]
    _grammars: set[int]
    _is_answering = False

    def start(self) -> None:
        if self._process is None:
            self._choices, self._grammars = set(), set()
            waiting = self.idle.setdefault(self._command, [])
            if waiting:
                self._process, self._reader = waiting.pop()
                self.starts += 1
        super().start()

    def call(self, request: WorkerRequest, seconds: float = MAX_SECONDS) -> WorkerReply:
        self.start()
        if isinstance(request, Compile):
            self._grammars.add(request.number)
        if isinstance(request, Advance):
            self._choices.add(request.choice)
        self._is_answering = True
        try:
            return super().call(request, seconds)
        finally:
            self._is_answering = False

    def kill(self) -> None:
        if self._is_answering:
            super().kill()

    def close(self) -> None:
        if self._process is not None:
            self.tell(Forget([*self._choices], [*self._grammars]))
        if self._process is not None and self._reader is not None:
            self.idle[self._command].append((self._process, self._reader))
            self._process = self._reader = None


@pytest.fixture(scope="session")
def processes() -> Iterator[None]:
    yield
    for waiting in SharedProcess.idle.values():
        for process, _ in waiting:
            process.close()
            process.popen.wait(PATIENCE_SECONDS)


@pytest.fixture(autouse=True)
def shared_processes(processes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (checker, lane):
        monkeypatch.setattr(module, "GrammarProcess", SharedProcess)
