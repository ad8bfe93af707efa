"""OpenAI's dialect for the runner of batches: whose lines are computed, and under which name they count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL

from onward.api.routes import Services
from onward.server.batch_lines import OpenAIBatches
from onward.server.keys import Key, Keys, digest
from onward.server.metrics import Metrics
from onward.service.keys import create_key
from onward.service.limits import Limits
from onward.service.store import open_store
from onward.service.team import Team
from tests.server.fakes import FakeBackend, settings

OF_FILE = Key(digest("sk-of-the-file"), "carol")


class Accepted:
    """The keys that a server accepts at the moment."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(URL.create("sqlite", database=str(folder / "onward.db")))
        with self.store.begin() as connection:
            create_key(connection, "sk-a", "alice", Limits(), self.store.clock())
        self.team = Team(self.store, folder / "spool")
        self.of_file: list[Key] = [OF_FILE]
        backend = FakeBackend()
        services = Services.create(backend, settings(), lambda *_: None)  # type: ignore[arg-type]
        self.batches = OpenAIBatches(services, self.team, Metrics(backend), lambda: self.keys)

    @property
    def keys(self) -> Keys:
        return Keys(self.of_file).with_stored(self.team.keys)


@pytest.fixture
def accepted(tmp_path: Path) -> Iterator[Accepted]:
    found = Accepted(tmp_path)
    yield found
    found.team.close()


def test_lines_of_a_key_of_the_file_are_computed_as_long_as_it_is_accepted(accepted: Accepted) -> None:
    assert accepted.batches.key_is_valid(OF_FILE.public_id)
    accepted.of_file.clear()
    assert not accepted.batches.key_is_valid(OF_FILE.public_id)
    assert accepted.batches.key_is_valid(""), "it was made when there were no keys"


def test_a_key_of_the_ledger_is_known_by_its_id(accepted: Accepted) -> None:
    (stored,) = accepted.team.keys
    for public_id, name in ((OF_FILE.public_id, "carol"), (stored.grant.id, "alice")):
        found = accepted.keys.known_as(public_id)
        assert found is not None and found.name == name
    assert accepted.keys.known_as("key_of_nobody") is None


def test_a_queue_that_is_full_is_said_by_the_code_that_clients_wait_for(accepted: Accepted) -> None:
    assert '"token_limit_exceeded"' in accepted.batches.queue_full(None, 32)  # type: ignore[arg-type]
