"""The same requests through an engine in a process of its own and through one in a thread, on any number of threads,
and while engines are killed: the same bytes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.chaos.workload import complete
from tests.folded import Folded
from tests.laws.test_stress import make_request
from tests.processes import ServerProcess, kill, server_process

pytestmark = [pytest.mark.slow, pytest.mark.real]

NUM_REQUESTS = 100
NUM_CLIENTS = 12


def fields_of(number: int) -> dict[str, Any]:
    """Every other request is streamed."""
    return make_request(number) | {"stream": bool(number % 2)}


def answers_of(server: ServerProcess, answered: Callable[[int], None] = lambda count: None) -> list[Folded]:
    """`answered` is called with 1, 2, … as answers come, on the clients' threads."""
    counter = itertools.count(1)

    def ask(number: int) -> Folded:
        answer = complete(server.url, "storyteller", fields_of(number))
        answered(next(counter))
        return answer

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        return list(pool.map(ask, range(NUM_REQUESTS)))


def test_neither_a_process_nor_threads_nor_restarts_nor_crashes_change_100_answers() -> None:
    """From an engine in a thread, and from one in a process on one to four threads, each in a server of its own; in the
    last one the engine is killed, and the requests are sent again."""
    found, killed = [], list[int]()
    for engine_process, threads in (("off", "2"), *(("on", threads) for threads in "1234")):
        with server_process("--threads", threads, "--engine-process", engine_process, model="storyteller") as server:
            found.append(answers_of(server))
            if threads == "4":
                found.append(answers_of(server, partial(kill_engines, server, killed)))
                found.append(answers_of(server))
    for again in found[1:]:
        different = [number for number in range(NUM_REQUESTS) if again[number] != found[0][number]]
        assert not different, f"{len(different)} differ, the first: {make_request(different[0])}"
    assert len(killed) == 2 and not [answer.error for answer in found[0] if answer.error]


def kill_engines(server: ServerProcess, killed: list[int], answered: int) -> None:
    """Kill the engine after the 20th and the 60th answer, while it computes others."""
    if answered in (20, 60):
        killed.append(server.engine(other_than=killed[-1] if killed else 0))
        kill(killed[-1])
