"""Stored verdicts: the answer that each is about, and what a later run reuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward.cli.verify.saved import Difference, Saved
from onward.cli.verify.verdicts import Verdict, VerdictFile, VerdictKind, Verification, digest_of

SAVED = Saved(id="a", model="toy", fields={"prompt": "x"}, choices=[{"index": 0, "text": "y"}], fingerprint="fp_1")
VERDICT = Verdict(id="a", model="toy", verdict="different", fingerprint="fp_1", computed="fp_1")
DIFFERENCE = Difference(choice=0, field="text", character=1, saved="y", computed="z")


@pytest.mark.parametrize(
    "change",
    [
        {"fields": {}},
        {"choices": []},
        {"usage": {"prompt_tokens": 1}},
        {"fingerprint": "fp_2"},
        {"seed": 1},
        {"route": "/generate"},
        {"model": "other"},
        {"is_whole": False},
        {"otherwise": SAVED},
        {"otherwise": replace(SAVED, is_whole=False)},
        {"fields": {"prompt": 2**70}},
    ],
)
def test_what_changes_a_verdict_changes_the_digest(change: dict[str, Any]) -> None:
    assert digest_of(replace(SAVED, **change), None) != digest_of(SAVED, None)
    assert digest_of(SAVED, "toy") != digest_of(SAVED, None)
    assert digest_of(replace(SAVED, id="b", at_ms=7), None) == digest_of(SAVED, None)
    first, second = (digest_of(replace(SAVED, otherwise=replace(SAVED, is_whole=each)), None) for each in (True, False))
    assert first != second


def test_a_verdict_that_is_kept_is_given_the_name_that_its_answer_has_now(tmp_path: Path) -> None:
    verdict = replace(VERDICT, difference=DIFFERENCE)
    digest = digest_of(SAVED, None)
    with VerdictFile(tmp_path / "v.jsonl") as output:
        assert output.known(SAVED, digest) is None
        output.add(verdict, digest)
    with VerdictFile(tmp_path / "v.jsonl") as output:
        assert output.known(SAVED, digest) == verdict
        assert output.known(replace(SAVED, id="b"), digest) == replace(verdict, id="b")


def test_what_is_not_known_is_asked_again_and_written_once(tmp_path: Path) -> None:
    unknown = replace(VERDICT, verdict="unknown", reason="no seed")
    for _ in range(2):
        with VerdictFile(tmp_path / "v.jsonl") as output:
            assert output.known(SAVED, "d") is None
            output.add(unknown, "d")
    assert len((tmp_path / "v.jsonl").read_text(encoding="utf-8").splitlines()) == 1


def test_verdicts_are_counted_as_they_come() -> None:
    found = Verification(total=3)
    kinds: dict[int, VerdictKind] = {2: "same", 0: "different", 1: "same"}
    for place, kind in kinds.items():
        found.add(place, replace(VERDICT, verdict=kind))
    assert found.counts == {"same": 2, "different": 1, "unknown": 0} and found.num_done == 3
