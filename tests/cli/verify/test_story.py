"""A story of the playground is read as the requests that generated it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.cli.verify.saved import Saved
from onward.cli.verify.story import read_story
from onward.errors import SetupError

RUN: dict[str, Any] = {
    "model": "toy",
    "settings": {"max_tokens": 4, "n": 2},
    "seed": 7,
    "fingerprint": "fp_1",
    "finish": "length",
}


def node(id: int, parent: int | None, text: str, run: dict[str, Any] | None = None) -> dict[str, Any]:
    generated = {} if run is None else {"run": run}
    return {"id": id, "parent": parent, "text": text, "origin": "written" if run is None else "generated", **generated}


def read(*nodes: dict[str, Any]) -> list[Saved]:
    document = {"format": "onward-story", "version": 1, "title": "A fox", "nodes": list(nodes), "current": None}
    return list(read_story(Path("fox.json"), document))


def test_a_request_has_the_text_before_it_and_all_its_choices() -> None:
    (found,) = read(
        node(1, None, "Once"), node(2, 1, " upon"), node(3, 2, " a", RUN), node(4, 2, " the", RUN), node(5, 3, "!")
    )
    assert found.fields == {"model": "toy", "max_tokens": 4, "n": 2, "prompt": "Once upon", "seed": 7}
    assert found.choices == [
        {"text": " a", "finish_reason": "length"},
        {"text": " the", "finish_reason": "length"},
    ]
    assert (found.id, found.model, found.fingerprint, found.is_whole) == ("A fox, node 3", "toy", "fp_1", False)


def test_other_seeds_and_settings_are_other_requests() -> None:
    runs = [RUN, RUN | {"seed": 8}, RUN | {"settings": {}}, RUN | {"model": "other"}]
    found = read(node(1, None, "Once"), *(node(2 + at, 1, " a", run) for at, run in enumerate(runs)))
    assert len(found) == 4 and [each.fields["seed"] for each in found] == [7, 8, 7, 7]


@pytest.mark.parametrize(
    ("more", "is_end"), [({}, True), ({"finish": "sentence", "until": "sentence"}, False), ({"finish": ""}, False)]
)
def test_a_text_that_the_page_ended_is_a_beginning(more: dict[str, Any], is_end: bool) -> None:
    (found,) = read(node(1, None, "Once"), node(2, 1, " a", RUN | more))
    assert (found.choices[0]["finish_reason"] is not None) == is_end


def test_what_was_sent_around_a_text_is_sent_again() -> None:
    """Positions count UTF-16 code units: the emoji is two of them."""
    frame = {"head": "[memory]\n", "cut": 2, "note": "[note]", "noteAt": 4, "follow": 3}
    (found,) = read(node(1, None, "🙂abcd"), node(2, 1, "x", RUN | {"frame": frame, "suffix": "🙂efg"}))
    assert found.fields["prompt"] == "[memory]\nab[note]cd"
    assert found.fields["suffix"] == "🙂e"
    assert found.choices[0]["finish_reason"] is None, "a proposal may have been cut"


def test_a_text_that_was_cut_in_two_belongs_to_one_request() -> None:
    """The second part may also have been generated on its own with the same seed: both are tried."""
    rest, first = read(node(1, None, "Once"), node(2, 1, " a", RUN), node(3, 2, " fox", RUN))
    assert first.choices == [{"text": " a", "finish_reason": None}]
    assert (rest.id, rest.fields["prompt"], rest.choices[0]["text"]) == ("A fox, node 3", "Once", " a fox")
    assert rest.otherwise is not None
    assert (rest.otherwise.fields["prompt"], rest.otherwise.choices[0]["text"]) == ("Once a", " fox")


@pytest.mark.parametrize(
    "nodes",
    [
        [node(1, 2, "a", RUN), node(2, 1, "b")],
        [node(1, 9, "a", RUN)],
        [node(1, 2, "a", RUN), node(2, 1, "b", RUN)],
    ],
)
def test_a_broken_tree_is_refused(nodes: list[dict[str, Any]]) -> None:
    with pytest.raises(SetupError, match="is broken at node"):
        read(*nodes)
