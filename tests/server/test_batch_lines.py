"""OpenAI's dialect for the runner of batches: whose lines are computed, and under which name they count."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward.api.routes import Services
from onward.errors import InvalidRequest, ServerError
from onward.server.batch_lines import OpenAIBatches
from onward.server.keys import Key, Keys
from onward.server.metrics import Metrics
from onward.service.batch_records import BatchLine, Computed, StoredBatch
from onward.service.grant import digest_of
from onward.service.keys import create_key
from onward.service.limits import Limits
from onward.service.team import Team
from tests.server.fakes import FakeBackend, delta, settings
from tests.service.databases import new_store

OF_FILE = Key(digest_of("sk-of-the-file"), "carol")


class Accepted:
    """The keys that a server accepts at the moment."""

    def __init__(self, folder: Path) -> None:
        self.store = new_store(folder / "onward.db")
        with self.store.begin() as connection:
            create_key(connection, "sk-a", "alice", Limits(tokens_per_day=10**6), self.store.clock())
        self.team = Team(self.store, folder / "spool")
        self.of_file: list[Key] = [OF_FILE]
        self.backend = FakeBackend()
        services = Services.create(self.backend, settings(), lambda *_: None)  # type: ignore[arg-type]
        self.batches = OpenAIBatches(services, self.team, Metrics(self.backend), lambda: self.keys)

    def compute(self, **fields: Any) -> Computed:
        """Compute a line of the stored key."""
        (stored,) = self.team.keys
        body = json.dumps({"model": "storyteller", "prompt": "Once", **fields}).encode()
        line = BatchLine(
            batch_id="batch_1", key_id=stored.grant.id, number=3, custom_id=b'"a"', request=body, created_ms=1000
        )
        return asyncio.run(self.batches.compute(line))

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


@pytest.mark.parametrize(
    ("models", "named"), [(None, "storyteller"), ({"org/tiny"}, "org/tiny"), ({"gone"}, "any model")]
)
def test_a_full_queue_has_the_error_code_that_clients_wait_for(
    accepted: Accepted, models: set[str] | None, named: str
) -> None:
    """The message names a model that the key may use."""
    (stored,) = accepted.team.keys
    grant = replace(stored.grant, models=None if models is None else frozenset(models))
    accepted.team._keys.keys = [replace(stored, grant=grant)]
    batch = StoredBatch(
        id="batch_1", key_id=grant.id, endpoint="/v1/completions", input_file_id="file-1", completion_window="24h",
        status="validating", created_ms=1, expires_ms=2,
    )  # fmt: skip
    (fault,) = json.loads(accepted.batches.queue_full(batch, 32))["data"]
    assert fault["code"] == "token_limit_exceeded" and f" reached for {named} in " in fault["message"]


def test_a_line_that_fails_after_it_was_computed_has_a_row_in_which_nothing_is_billed(accepted: Accepted) -> None:
    accepted.backend.script_of = lambda request: [delta("a"), delta("b"), ServerError("it broke")]
    computed = accepted.compute(max_tokens=9)
    assert not computed.result.is_output and json.loads(computed.result.data)["response"]["status_code"] == 500
    row = computed.row
    assert row is not None and (row.status, row.batch, row.key_name) == (500, "batch_1", "alice")
    assert (row.prompt_tokens, row.completion_tokens, row.delivered_tokens) == (0, 0, 0)
    assert computed.reservation_id is not None and computed.grant is not None, "what it reserved is settled with it"


def test_a_line_that_is_refused_before_it_is_computed_has_no_row(accepted: Accepted) -> None:
    assert accepted.compute(temperature=9).row is None
    accepted.backend.error_to_raise = InvalidRequest("too long")
    assert accepted.compute().row is None


def test_lines_are_in_the_background_with_the_weight_of_their_key(accepted: Accepted) -> None:
    (stored,) = accepted.team.keys
    accepted.team._keys.keys = [replace(stored, grant=replace(stored.grant, priority=5))]
    accepted.compute(max_tokens=9)
    assert [(request.is_background, request.weight) for request in accepted.backend.requests] == [(True, 5)]


def test_a_line_that_is_computed_is_billed(accepted: Accepted) -> None:
    computed = accepted.compute(max_tokens=9, seed=5)
    assert computed.row is not None and computed.row.status == 200 and computed.row.seed == "5"
    assert (computed.row.prompt_tokens, computed.row.completion_tokens) == (7, 3)
    assert json.loads(computed.result.data)["response"]["seed"] == 5
