"""Checks the constraints of requests in disposable processes, a few at a time, and fairly among clients."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from concurrent.futures import Future
from typing import TypeVar

from onward.constraints.errors import GrammarError
from onward.constraints.process.client import WORKER, GrammarProcess
from onward.constraints.process.messages import Check, Checked
from onward.ipc.disposable import ProcessLost

T = TypeVar("T")

MAX_PROCESSES = 3
MAX_PER_CLIENT = 2
"""Of the processes: one is left for others."""
MAX_QUEUED_PER_CLIENT = 200
MAX_KNOWN = 128
"""Constraints whose grammars are kept."""
MAX_REFUSED = 4096
"""Constraints that ended a process: they are refused without another try."""
IDLE_SECONDS = 30.0
"""How long processes stay idle before all of them end but one, which stays warm."""


CLOSED = "Onward is shutting down"
NOT_STARTED = "the process that compiles it cannot be started"


class QueueFull(Exception):
    """A client has too many constraints that wait to be checked."""


class Ticket:
    """One request that waits for a check. `future` returns the grammar, or raises GrammarError."""

    def __init__(self, work: _Work, abandon: Callable[[_Work], None]) -> None:
        self.future = work.future
        self._work = work
        self._abandon = abandon

    def abandon(self) -> None:
        """One caller no longer waits: a check that nobody waits for is not begun."""
        self._abandon(self._work)


class _Work:
    def __init__(self, key: bytes, client: str, make: Callable[[], Check]) -> None:
        self.key = key
        self.client = client
        self.make = make
        self.future: Future[str] = Future()
        self.num_waiting = 1


class GrammarChecker:
    """Safe from every thread. Starts nothing before the first constraint; `close` ends its processes.

    From then on it has a thread and a process, and up to MAX_PROCESSES of them while several constraints wait. Clients
    take turns; one that sends many delays only itself.
    """

    def __init__(self, command: ReadOnly[str] = WORKER) -> None:
        self._command = command
        self._changed = threading.Condition()
        """Guards what follows; held for microseconds."""
        self._queues: OrderedDict[str, deque[_Work]] = OrderedDict()
        self._running: dict[str, int] = {}
        self._pending: dict[bytes, _Work] = {}
        self._known: OrderedDict[bytes, str | GrammarError] = OrderedDict()
        self._refused: OrderedDict[bytes, str] = OrderedDict()
        self._processes: set[GrammarProcess] = set()
        self._is_closed = False

    def submit(self, client: str, identity: ReadOnly[str], make: Callable[[], Check]) -> Ticket:
        """Check a constraint. `make` returns it, on another thread, and may raise GrammarError; equal identities have
        equal constraints. Raises QueueFull."""
        key = _digest(*identity)
        with self._changed:
            if self._is_closed:
                return self._answered(GrammarError(CLOSED))
            if key in self._refused:
                return self._answered(GrammarError(self._refused[key]))
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return self._answered(known)
            work = self._pending.get(key)
            if work is not None:
                work.num_waiting += 1
                return Ticket(work, self._abandon)
            queue = self._queues.setdefault(client, deque())
            if len(queue) >= MAX_QUEUED_PER_CLIENT:
                raise QueueFull
            work = self._pending[key] = _Work(key, client, make)
            queue.append(work)
            if len(self._processes) < min(MAX_PROCESSES, self._num_startable()):
                self._start(work)
            self._changed.notify()
        return Ticket(work, self._abandon)

    def refuse(self, grammar: str, reason: str) -> None:
        """Refuse a grammar from now on: it ended an engine."""
        with self._changed:
            _remember(self._refused, _digest(grammar), reason, MAX_REFUSED)
            self._known.clear()

    def close(self) -> None:
        """End all processes; what waits fails."""
        with self._changed:
            self._is_closed = True
            waiting = [work for queue in self._queues.values() for work in queue]
            self._queues.clear()
            for process in self._processes:
                process.kill()
            self._changed.notify_all()
        for work in waiting:
            _resolve(work.future, GrammarError(CLOSED))

    def _answered(self, known: str | GrammarError) -> Ticket:
        work = _Work(b"", "", lambda: Check(""))
        _resolve(work.future, known)
        return Ticket(work, lambda work: None)

    def _abandon(self, work: _Work) -> None:
        with self._changed:
            work.num_waiting -= 1
            queue = self._queues.get(work.client)
            if work.num_waiting <= 0 and queue is not None and work in queue:
                queue.remove(work)
                self._pending.pop(work.key, None)
                self._drop_empty_queue(work.client)

    def _num_startable(self) -> int:
        """Return how many checks may run at the same time."""
        clients = self._queues.keys() | self._running.keys()
        counts = (len(self._queues.get(client, ())) + self._running.get(client, 0) for client in clients)
        return sum(min(count, MAX_PER_CLIENT) for count in counts)

    def _start(self, work: _Work) -> None:
        """Start one more process, if the system has a thread for it. Without any process, `work` fails."""
        process = GrammarProcess(self._command)
        try:
            threading.Thread(target=self._run, args=(process,), name="onward-grammars", daemon=True).start()
            self._processes.add(process)
        except RuntimeError as error:
            if not self._processes:
                self._queues[work.client].remove(work)
                self._pending.pop(work.key)
                self._drop_empty_queue(work.client)
                _resolve(work.future, GrammarError(f"{NOT_STARTED}: {error}"))

    def _run(self, process: GrammarProcess) -> None:
        """Check what waits, until there is nothing to do for this process."""
        work = None
        try:
            while (work := self._next(process)) is not None:
                result = self._check(process, work)
                self._finish(work, result)
                if isinstance(result, GrammarError) and not self._is_closed:
                    process.start()  # another one for the next, if this one ended it
        except OSError as error:  # no process can be started
            self._fail(process, work, str(error))
        finally:
            process.close()

    def _next(self, process: GrammarProcess) -> _Work | None:
        """Return the next work; None if the process is to end."""
        with self._changed:
            has_idled = False
            while not self._is_closed:
                for client, queue in self._queues.items():
                    if queue and self._running.get(client, 0) < MAX_PER_CLIENT:
                        self._queues.move_to_end(client)
                        self._running[client] = self._running.get(client, 0) + 1
                        return queue.popleft()
                is_spare = len(self._processes) > 1
                if has_idled and is_spare:
                    break
                has_idled = not self._changed.wait(IDLE_SECONDS if is_spare else None)
            self._processes.discard(process)
            return None

    def _check(self, process: GrammarProcess, work: _Work) -> str | GrammarError:
        try:
            checked = self._answer(process, work.make())
            assert isinstance(checked, Checked)
        except GrammarError as error:
            return error
        except ProcessLost as error:
            with self._changed:
                _remember(self._refused, work.key, str(error), MAX_REFUSED)
            return GrammarError(str(error))
        except OSError:
            raise
        except Exception as error:
            return GrammarError(f"it cannot be read: {error}")
        if checked.problem:
            return GrammarError(checked.problem)
        reason = self._refused.get(_digest(checked.grammar))
        return GrammarError(reason) if reason else checked.grammar

    def _answer(self, process: GrammarProcess, request: Check) -> object:
        """Return the answer to a request, tried again if the process was killed from outside. Raises ProcessLost."""
        try:
            return process.call(request)
        except ProcessLost as error:
            if not error.was_killed or self._is_closed:
                raise
            return process.call(request)

    def _finish(self, work: _Work, result: str | GrammarError) -> None:
        with self._changed:
            self._release(work)
            _remember(self._known, work.key, result, MAX_KNOWN)
            self._changed.notify()
        _resolve(work.future, result)

    def _release(self, work: _Work) -> None:
        """The work no longer runs. Called with the lock held."""
        self._pending.pop(work.key, None)
        running = self._running.pop(work.client, 1) - 1
        if running:
            self._running[work.client] = running
        self._drop_empty_queue(work.client)

    def _drop_empty_queue(self, client: str) -> None:
        """Keep nothing of a client without a check that waits or runs. Called with the lock held."""
        if not self._queues.get(client) and client not in self._running:
            self._queues.pop(client, None)

    def _fail(self, process: GrammarProcess, work: _Work | None, reason: str) -> None:
        """Fail the work that a process cannot be started for, and what waits if there is no other process."""
        with self._changed:
            self._processes.discard(process)
            failed = []
            if work is not None and not work.future.done():
                failed.append(work)
                self._release(work)
            if not self._processes:
                failed += self._pending.values()
                self._pending.clear()
                self._queues.clear()
            self._changed.notify()  # of what this process was notified
        for each in failed:
            _resolve(each.future, GrammarError(f"{NOT_STARTED}: {reason}"))


def _remember(where: OrderedDict[bytes, T], key: bytes, value: T, most: int) -> None:
    where[key] = value
    if len(where) > most:
        where.popitem(last=False)


def _resolve(future: Future[str], result: str | GrammarError) -> None:
    if isinstance(result, GrammarError):
        future.set_exception(GrammarError(str(result)))
    else:
        future.set_result(result)


def _digest(*parts: str) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()
