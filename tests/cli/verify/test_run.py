"""Answers are computed again while their file is still being written, and what counts as a sign of life of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward.cli.batch.patience import Patience
from onward.cli.session import Output, ServerConnection, Session
from onward.cli.verify.run import TOO_LATE, VerifyRun, verify
from onward.cli.verify.saved import Saved
from onward.cli.verify.verdicts import VerdictFile, Verification

from ..conftest import create
from ..scripted import answer, completion, error, scripted

FIELDS = {"model": "toy", "prompt": "Once", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def good() -> Saved:
    """An answer of the toy model that can be reproduced."""
    ran = create(*(f"--{name.replace('_', '-')}={value}" for name, value in FIELDS.items()), "--format", "json")
    body = json.loads(ran.stdout)
    return Saved(
        id="good", model="toy", fields=FIELDS, choices=body["choices"], fingerprint=body["system_fingerprint"], at_ms=5
    )


def verified(*readings: list[Saved], output: VerdictFile | None = None, base_url: str | None = None) -> Verification:
    """Verify a file that has other answers each time it is read."""
    left: Iterator[list[Saved]] = iter(readings)
    found = Verification()
    session = Session(ServerConnection(base_url=base_url), Output())
    verify(VerifyRun(session, lambda: next(left), 2, None, output), found)
    assert found.num_done == len(found.verdicts) == found.total == sum(found.counts.values())
    return found


def said(found: Verification) -> dict[str, tuple[str, str]]:
    return {each.id: (each.verdict, each.reason) for each in found.verdicts.values()}


def test_answers_are_known_by_what_they_are_not_by_their_place(good: Saved, tmp_path: Path) -> None:
    bad = replace(good, id="bad", choices=[{**good.choices[0], "text": "no"}])
    with VerdictFile(tmp_path / "verdicts.jsonl") as output:
        assert said(verified([good, bad], [good, bad], output=output))["bad"][0] == "different"
    with VerdictFile(tmp_path / "verdicts.jsonl") as output:
        other = replace(good, id="other", fields=FIELDS | {"prompt": "Twice"})
        found = verified([good, bad], [other, bad, replace(good, id="again")], output=output)
    assert said(found) == {"other": ("unknown", TOO_LATE), "bad": ("different", ""), "again": ("same", "")}
    assert found.num_known == 2


def test_what_is_logged_while_it_is_read_is_left_out(good: Saved) -> None:
    """A server that answers the verification logs these requests, too."""
    late = replace(good, id="late", at_ms=6)
    assert set(said(verified([good], [good, late, late]))) == {"good"}
    assert set(said(verified([good, late], [late]))) == {"late"}, "or it is deleted"
    assert said(verified([], [replace(good, at_ms=0)])) == {"good": ("unknown", TOO_LATE)}


@pytest.mark.parametrize(
    ("reply", "more", "is_alive"),
    [
        (error(400, "It is too long."), {}, True),
        (answer(200, completion("x")), {"temperature": 1}, True),
        (answer(200, completion("x")), {"temperature": 1, "seed_of_answer": None}, False),
        (answer(200, completion("x")), {"temperature": 9}, False),
    ],
)
def test_a_refusal_of_the_server_is_a_sign_of_life(
    good: Saved, reply: bytes, more: dict[str, Any], is_alive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Patience] = []
    monkeypatch.setattr(Patience, "finished", lambda self: finished.append(self))
    seed = more.pop("seed_of_answer", 3)
    with scripted(reply) as server:
        asked = replace(good, fields=FIELDS | more, seed=seed)
        found = verified([asked], [asked], base_url=server.url)
        assert bool(server.requests) == is_alive
    assert found.counts["unknown"] == 1 and len(finished) == is_alive
