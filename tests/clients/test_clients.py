"""Every real client works against real servers. `make clients` prints the same checks as a table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .recipes import recipes
from .run import CLIENTS, Bench, Installed, Shaped, bench, run_client


@pytest.fixture(scope="module")
def on() -> Iterator[Bench]:
    with bench() as running:
        yield running


def test_a_program_runs_the_settings_of_each_editor() -> None:
    programs = "".join(
        path.read_text(encoding="utf-8") for path in (Path(__file__).parent / "programs").iterdir() if path.is_file()
    )
    assert recipes() and all(f'"{section}"' in programs for section in recipes())


OFTEN = ("openai (Python)", "openai (Python) 0.28", "openai (Node) 7, Node 22")
"""OpenAI's own: the newest ones, and the one that programs of its time have."""


def marks(client: Installed | Shaped) -> list[pytest.MarkDecorator]:
    """All are slow. Those that need an installation are companions, except for `OFTEN`."""
    is_slow = isinstance(client, Shaped) or client.name in OFTEN
    return [pytest.mark.slow] if is_slow else [pytest.mark.slow, pytest.mark.companion]


@pytest.mark.parametrize(
    "client",
    [pytest.param(client, id=client.name, marks=marks(client)) for client in CLIENTS],
)
def test_a_client_works(on: Bench, client: Installed | Shaped) -> None:
    report = run_client(client, on)
    if report.skipped:
        pytest.skip(f"{client.name} COULD NOT BE INSTALLED: {report.skipped}")
    assert report.checks
    assert not report.failed, "\n".join(f"{name}\n{why}" for name, why in report.failed)
