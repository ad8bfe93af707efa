"""The same requests through an engine in a process of its own and through one in a thread: the same bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.chaos.workload import complete
from tests.folded import Folded
from tests.laws.test_stress import make_request
from tests.processes import served

pytestmark = [pytest.mark.slow, pytest.mark.real]

NUM_REQUESTS = 100
NUM_CLIENTS = 12


def fields_of(number: int) -> dict[str, Any]:
    """Every other request is streamed."""
    return make_request(number) | {"stream": bool(number % 2)}


def answers(engine_process: str) -> list[Folded]:
    flags = ("--engine-process", engine_process)
    with served(*flags, model="storyteller") as url, ThreadPoolExecutor(NUM_CLIENTS) as pool:
        return list(pool.map(lambda number: complete(url, "storyteller", fields_of(number)), range(NUM_REQUESTS)))


def test_a_process_and_a_thread_answer_100_requests_alike() -> None:
    in_process, in_thread = answers("on"), answers("off")
    different = [number for number in range(NUM_REQUESTS) if in_process[number] != in_thread[number]]
    assert not different, f"{len(different)} differ, the first: {make_request(different[0])}"
    assert not [answer.error for answer in in_process if answer.error]
