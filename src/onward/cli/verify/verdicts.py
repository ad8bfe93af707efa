"""Verdicts on saved answers, in memory and in a file that a later run continues."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from onward.cli.batch.journal import BatchJournal
from onward.cli.verify.saved import Difference, Saved

VerdictKind = Literal["same", "different", "unknown"]
SAME: VerdictKind = "same"
DIFFERENT: VerdictKind = "different"
UNKNOWN: VerdictKind = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a saved answer. `reason` says why it is unknown, `difference` where it differs.
    `computed` is the fingerprint of what computed it again."""

    id: str
    model: str
    verdict: VerdictKind
    fingerprint: str
    computed: str | None = None
    reason: str = ""
    difference: Difference | None = None

    @property
    def words(self) -> str:
        return self.reason if self.difference is None else self.difference.in_words()

    def as_document(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "id": self.id,
            "model": self.model,
            "reason": self.reason or None,
            "difference": None if self.difference is None else self.difference.as_document(),
            "system_fingerprint": self.fingerprint or None,
            "computed_fingerprint": self.computed,
        }


def _of_document(document: dict[str, Any]) -> Verdict:
    """Return the verdict in a document. Raises KeyError or TypeError if it has none."""
    difference = document["difference"]
    return Verdict(
        id=document["id"],
        model=document["model"],
        verdict=document["verdict"],
        fingerprint=document["system_fingerprint"] or "",
        computed=document["computed_fingerprint"],
        reason=document["reason"] or "",
        difference=None if difference is None else Difference(**{"choice": None, **difference}),
    )


@dataclass(slots=True)
class Verification:
    """The verdicts so far, by the place of their answer among all, of which there are `total`. `counts` are the numbers
    of each kind, `num_known` is how many were known from earlier runs. A thread may read the numbers meanwhile."""

    total: int = 0
    num_known: int = 0
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((SAME, DIFFERENT, UNKNOWN), 0))

    def add(self, place: int, verdict: Verdict) -> None:
        self.verdicts[place] = verdict
        self.counts[verdict.verdict] += 1

    @property
    def num_done(self) -> int:
        return sum(self.counts.values())


class VerdictFile(BatchJournal):
    """A file of verdicts, one JSON object per line. `verdicts` has those of earlier runs, by the digest of the saved
    answer and of the model that computes it."""

    RECORD_START = b'{"verdict":"'
    RECORD_NAME = "a verdict"

    def __init__(self, path: Path) -> None:
        """Raises SetupError as BatchJournal does."""
        self.verdicts: dict[str, Verdict] = {}
        super().__init__(path)

    def key_of(self, record: dict[str, Any]) -> str:
        digest = str(record["digest"])
        self.verdicts[digest] = _of_document(record)
        return digest

    def known(self, saved: Saved, digest: str) -> Verdict | None:
        """Return the verdict on an answer; None if there is none, or if one that was unknown may be known now."""
        known = self.verdicts.get(digest)
        if known is None or known.verdict == UNKNOWN:  # another model may be here now
            return None
        return replace(known, id=saved.id)

    def add(self, verdict: Verdict, digest: str) -> None:
        if verdict != self.verdicts.get(digest):  # still unknown
            self.append({**verdict.as_document(), "digest": digest})


def digest_of(saved: Saved, model: str | None) -> str:
    """Return what identifies a saved answer and the model that computes it: None is its own. The answer's id is left
    out: the same request with the same answer may have another one."""
    otherwise = None if saved.otherwise is None else digest_of(saved.otherwise, model)
    parts = [
        *(saved.fields, saved.choices, saved.usage, saved.fingerprint, saved.seed, saved.route, saved.model, model),
        *(saved.is_whole, otherwise),
    ]
    try:
        content = msgspec.json.encode(parts, order="sorted")
    except (ValueError, OverflowError, RecursionError):  # such as an integer of more than 64 bits
        content = repr(parts).encode(errors="surrogatepass")
    return hashlib.sha256(content).hexdigest()[:32]
