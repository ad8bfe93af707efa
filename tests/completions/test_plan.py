"""What a request becomes before the engine sees it."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from onward.completions.plan import ServedModel, plan
from onward.protocol.decode import check_request
from onward.runtimes.toy import ToyTokenizer

TOY = ToyTokenizer()
MODEL = ServedModel("toy", TOY, TOY.size, 2048, None)


@pytest.mark.parametrize(
    ("fields", "repeatable"),
    [
        ({}, False),
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 2}, False),
        ({"seed": 0}, True),
        ({"temperature": 0}, True),
        ({"top_p": 0}, True),
        ({"top_k": 1}, True),
    ],
)
def test_a_request_can_be_repeated_when_it_has_a_seed_or_leaves_nothing_to_chance(
    fields: dict[str, Any], repeatable: bool
) -> None:
    planned = plan(check_request({"model": "toy", "prompt": "a", **fields}), MODEL, 0, count(), 100)
    assert [job.repeatable for job in planned.jobs] == [repeatable]
