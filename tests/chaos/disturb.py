"""Many faults under many streams: what must hold afterwards, and what was seen."""

from __future__ import annotations

import os
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from tests.chaos.faulty_engine import NAME, ORDERS
from tests.chaos.injector import Injector, read_metric, schedule
from tests.chaos.workload import NUM_REQUESTS, Clients, complete, make_request
from tests.folded import Folded
from tests.processes import ServerProcess, kill, server_process
from tests.waiting import PATIENCE_SECONDS, wait_for

MODEL = "toy"
ENGINE_TIMEOUT = "2"
MAX_NEW_THREADS = 8 + min(32, (os.cpu_count() or 1) + 4)
"""Threads that a server may have after faults and did not have before: those of asyncio's pool come with load."""


@dataclass(slots=True)
class Outcome:
    """What was seen. `recoveries` are seconds from each noticed loss until another engine was ready."""

    faults: Counter[str]
    num_compared: int
    num_cancelled: int
    num_unseeded: int
    num_poisoned: int
    quiet_recovery: float
    recoveries: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    resident: tuple[int, int] = (0, 0)
    """Bytes of the server's process before and after."""

    def summary(self) -> str:
        """Return what was seen, in lines."""
        before, after = (each // 2**20 for each in self.resident)
        return "\n".join(
            [
                f"{self.faults.total()} faults: {', '.join(f'{n} {kind}' for kind, n in sorted(self.faults.items()))}",
                f"{self.num_compared} answers compared, {self.num_unseeded} unseeded ones checked, "
                f"{self.num_cancelled} left by their clients, {self.num_poisoned} named as the cause of a loss",
                f"{len(self.recoveries)} recoveries: median {statistics.median(self.recoveries):.2f} s, longest "
                f"{max(self.recoveries):.2f} s; without load {self.quiet_recovery:.2f} s",
                f"the server's resident memory: {before} MiB before, {after} MiB after",
                *(f"PROBLEM: {problem}" for problem in self.problems),
            ]
        )


def disturb(num_faults: int, num_clients: int, seed: int, say: Callable[[str], None] = lambda line: None) -> Outcome:
    """Run a server, clients and faults; return what was seen. `say` receives a line per fault.

    Raises AssertionError if the server does not recover, or has lost something at the end.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.environ[ORDERS] = folder
        flags = ("--engine-process", "on", "--engine-timeout", ENGINE_TIMEOUT, "--log-level", "warning")
        with server_process(*flags, model=MODEL, module=NAME) as server:
            undisturbed = answer_all(server)
            quiet_recovery = _lose_engine_quietly(server)
            before = Resources.of(server)
            clients = Clients(server.url, MODEL, undisturbed, count=num_clients, seed=seed)
            injector = Injector(server, MODEL, Path(folder), clients, seed)
            faults = schedule(num_faults, seed)
            try:
                for number, kind in enumerate(faults):
                    say(f"{number + 1:4} {kind}")
                    injector.inject(kind)
            finally:
                clients.stop()
            after = wait_until_quiet(server, before)
            outcome = Outcome(
                Counter(faults),
                clients.num_compared,
                clients.num_cancelled,
                clients.num_unseeded,
                injector.num_poisoned,
                quiet_recovery,
                recovery_times(server),
                clients.problems,
                (before.resident, after.resident),
            )
            if answer_all(server) != undisturbed:
                outcome.problems.append("after all faults, answers are different")
            num_named = read_metric(server, MODEL, "onward_engine_poisoned_requests_total")
            if num_named != injector.num_poisoned:
                outcome.problems.append(f"{num_named:.0f} requests were ended as the cause of a loss")
    return outcome


@dataclass(frozen=True, slots=True)
class Resources:
    """What a server's process holds."""

    num_files: int
    num_threads: int
    resident: int

    @classmethod
    def of(cls, server: ServerProcess) -> Resources:
        folder = Path(f"/proc/{server.popen.pid}")
        resident = int((folder / "statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return cls(len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir())), resident)


def wait_until_quiet(server: ServerProcess, before: Resources) -> Resources:
    """Wait until nothing runs and nothing is held; return what the server holds then. Raises AssertionError."""
    for name in ("onward_kv_blocks_used", "onward_engine_running", "onward_engine_waiting"):
        wait_for(lambda name=name: read_metric(server, MODEL, name) == 0, f"{name} to be 0")  # type: ignore[misc]
    wait_for(lambda: Resources.of(server).num_files <= before.num_files, f"{before.num_files} open files")
    after = Resources.of(server)
    assert after.num_threads <= before.num_threads + MAX_NEW_THREADS, f"{before} became {after}"
    wait_for(lambda: len(server.engines()) == 1, "the end of all processes but one")
    assert httpx2.get(f"{server.url}/health", timeout=PATIENCE_SECONDS).json()["status"] == "ready"
    return after


def answer_all(server: ServerProcess) -> dict[int, Folded]:
    """Return the answer to each request, from an engine that nobody disturbs."""
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda n: complete(server.url, MODEL, make_request(n)), range(NUM_REQUESTS))
        found = dict(enumerate(answers))
    errors = [f"{make_request(number)}: {answer.error}" for number, answer in found.items() if answer.error]
    assert not errors, errors[0]
    return found


def recovery_times(server: ServerProcess) -> list[float]:
    """Return the seconds of each recovery, from the log."""
    return [float(found[1]) for line in server.output if (found := re.search(r"ready after ([\d.]+) s", line))]


def _lose_engine_quietly(server: ServerProcess) -> float:
    """Kill the engine while it has nothing to do; return how long the recovery takes, in seconds."""
    kill(server.engine())
    wait_for(lambda: bool(recovery_times(server)), "a recovery")
    return recovery_times(server)[-1]
