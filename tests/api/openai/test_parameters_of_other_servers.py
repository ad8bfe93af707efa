"""What the page of other servers' fields says is what requests meet."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.parameters import BY_NAME
from onward.errors import InvalidRequest
from tests.tables import each_row

PATH = Path(__file__).parents[3] / "docs" / "fields.py"
SPEC = importlib.util.spec_from_file_location("fields", PATH)
assert SPEC is not None and SPEC.loader is not None
fields = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(fields)
NAMES = sorted({name for names in fields.SERVERS.values() for name in names.split()})


@each_row("name", NAMES)
def test_a_field_acts_or_is_refused_as_the_page_says(name: str) -> None:
    answer = fields.answer_to(name)
    if not answer.startswith("refused"):
        assert name in BY_NAME
        return
    with pytest.raises(InvalidRequest, match=rf"\b{name}\b"):
        check_request({"model": "toy", "prompt": "x", name: 1})
    if "send `" in answer:
        assert answer.split("`")[1] in BY_NAME


def test_a_reason_belongs_to_a_field_of_the_page() -> None:
    assert set(fields.REASONS) <= set(NAMES)


def test_what_acts_has_no_reason_to_be_refused() -> None:
    assert not set(fields.REASONS) & set(BY_NAME)
