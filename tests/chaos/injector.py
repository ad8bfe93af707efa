"""Faults of an engine's process, one after the other, each followed by a recovery."""

from __future__ import annotations

import os
import random
import re
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
from benchmarks.hostile_constraints import HOSTILE_CONSTRAINTS

from tests.chaos.faulty_engine import FATAL, FAULTS, NO_MEMORY, NOT_FINITE, ORDER_FILE
from tests.chaos.workload import Clients, complete
from tests.processes import ServerProcess, kill
from tests.waiting import PATIENCE_SECONDS, wait_for

SIGNALS = {"kill": signal.SIGKILL, "abort": signal.SIGABRT, "stop": signal.SIGSTOP}
HARMFUL = ("not finite", "no memory", "fatal")
"""Requests that fail alone; the last one ends engines until it is found."""
DISPOSABLE = ("hostile constraint", "kill the disposable process")
"""What no engine notices."""
KINDS = (*SIGNALS, *FAULTS, *HARMFUL, *DISPOSABLE, "kill at the start")
NUM_EVENTS_BETWEEN = 100
"""Chunks that the clients receive between a recovery and the next fault, at least."""


def schedule(count: int, seed: int) -> list[str]:
    """Return as many kinds of faults in random order, each about as often as the others."""
    kinds = [KINDS[index % len(KINDS)] for index in range(count)]
    random.Random(seed).shuffle(kinds)
    return kinds


class Injector:
    """Injects faults into the engine of a server that runs `faulty_engine` with its orders in `folder`."""

    def __init__(self, server: ServerProcess, model: str, folder: Path, clients: Clients, seed: int) -> None:
        self._server, self._model, self._folder, self._clients = server, model, folder, clients
        self._rng = random.Random(seed)
        self.num_poisoned = 0
        """Requests that ended as the cause of a loss."""

    def inject(self, kind: str) -> None:
        """Inject one fault at a random moment, and wait until the streams continue."""
        before = self._num_recoveries()
        time.sleep(self._rng.random() * 0.2)
        if kind in HARMFUL:
            self._send_harmful(kind)
        elif kind in DISPOSABLE:
            self._disturb_grammars(kind)
        else:
            self._harm(kind)
            wait_for(lambda: self._num_recoveries() > before, f"the recovery from {kind!r}")
        target = self._clients.num_events + NUM_EVENTS_BETWEEN
        wait_for(lambda: self._clients.num_events > target, f"events after {kind!r}")

    def metric(self, name: str, labels: str = "") -> float:
        return read_metric(self._server, self._model, name, labels)

    def _num_recoveries(self) -> float:
        return self.metric("onward_engine_recovery_seconds_count")

    def _harm(self, kind: str) -> None:
        engine = self._server.engine()
        if kind in SIGNALS:
            os.kill(engine, SIGNALS[kind])
        elif kind == "kill at the start":
            kill(engine)
            successor = self._server.engine(other_than=engine)
            time.sleep(self._rng.random() * 0.5)
            kill(successor)
        else:
            self._order(f"{kind} {self._rng.choice(['before', 'after'])}")

    def _order(self, text: str) -> None:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=self._folder, delete=False) as file:
            file.write(text)
        Path(file.name).replace(self._folder / ORDER_FILE)

    def _disturb_grammars(self, kind: str) -> None:
        """Send all hostile constraints, or kill the processes that check them while one does; no engine is lost."""
        before = self._num_recoveries()
        if kind == "kill the disposable process":
            kill(*self._server.grammar_processes())
            fields: dict[str, Any] = {"regex": f"[a-z]{{{self._rng.randrange(2, 9)}}}", "max_tokens": 20}
            assert complete(self._server.url, self._model, {"prompt": "a"} | fields).error is None
        else:
            for name, constraint in HOSTILE_CONSTRAINTS.items():
                error = complete(self._server.url, self._model, {"prompt": "a", "max_tokens": 30} | constraint).error
                assert error is None or error["type"] == "invalid_request_error", (name, error)
        assert self._num_recoveries() == before, f"{kind} ended an engine"

    def _send_harmful(self, kind: str) -> None:
        first = [97 + self._rng.randrange(26) for _ in range(self._rng.choice([5, 45]))]
        fields: dict[str, Any] = {"max_tokens": 60, "ignore_eos": True, "stream": self._rng.random() < 0.5}
        if kind == "not finite":
            fields |= {"prompt": [*first, NOT_FINITE]}
        elif kind == "no memory":
            fields |= {"prompt": [NO_MEMORY] * 400, "echo": True, "logprobs": 1, "max_tokens": 1}
        else:
            fields |= {"prompt": [*first, FATAL]}
        error = complete(self._server.url, self._model, fields).error
        assert error and error["type"] == "server_error", f"{kind}: {error}"
        is_named = "Do not send it again unchanged" in error["message"]
        assert is_named == (kind == "fatal"), f"{kind}: {error}"
        self.num_poisoned += is_named


def read_metric(server: ServerProcess, model: str, name: str, labels: str = "") -> float:
    """Return the value of a metric of a model; `labels` are those after the model's."""
    text = httpx2.get(f"{server.url}/metrics", timeout=PATIENCE_SECONDS).text
    found = re.search(rf'^{name}{{model="{model}"{labels}}} (\S+)$', text, re.MULTILINE)
    assert found, f"{name} is not in the metrics"
    return float(found[1])
