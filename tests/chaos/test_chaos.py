"""The short form of `make chaos`."""

from __future__ import annotations

import sys

import pytest

if not sys.platform.startswith("linux"):
    pytest.skip("finds processes in /proc", allow_module_level=True)

from tests.chaos.disturb import disturb
from tests.chaos.injector import KINDS
from tests.chaos.parents import MOMENTS, kill_servers

pytestmark = pytest.mark.slow


def test_every_kind_of_fault_under_mixed_streams_leaves_every_answer_as_it_was() -> None:
    outcome = disturb(len(KINDS), num_clients=16, seed=1)
    assert outcome.problems == [], outcome.summary()
    assert outcome.num_compared > 16 and outcome.num_poisoned == 1


def test_a_server_that_is_killed_leaves_no_process_and_no_port() -> None:
    kill_servers(len(MOMENTS), seed=1)
