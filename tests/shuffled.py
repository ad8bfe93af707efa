"""`pytest -p tests.shuffled`: files, and the tests of each, run in random order; TESTS_ORDER=NUMBER repeats one."""

from __future__ import annotations

import os
import random

import pytest

ORDER = os.environ.setdefault("TESTS_ORDER", str(random.SystemRandom().randrange(1_000_000)))
"""The workers of pytest-xdist inherit it."""


def pytest_report_header() -> str:
    return f"tests in the order TESTS_ORDER={ORDER}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Called with all tests, or by workers with those of a file (tests/whole_files.py)."""
    _shuffle(items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Called once all items are known: those of workers are whole files, which `pytest_collection_modifyitems` does not
    see. Before the worker names them to the controller."""
    _shuffle(session.items)


def _shuffle(items: list[pytest.Item]) -> None:
    drawn = random.Random(ORDER)
    places = {path: drawn.random() for path in sorted({item.path for item in items})}
    items.sort(key=lambda item: (places[item.path], drawn.random()))
