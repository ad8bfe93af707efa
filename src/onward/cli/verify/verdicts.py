"""What can be said of saved answers, in memory and in a file that a later run continues."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from onward.cli.batch.journal import BatchJournal
from onward.cli.verify.saved import Difference, Saved

Kind = Literal["same", "different", "unknown"]
SAME: Kind = "same"
DIFFERENT: Kind = "different"
UNKNOWN: Kind = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What can be said of a saved answer. `reason` says why it cannot be known, `difference` where it differs.
    `computed` is the fingerprint of what computed it again."""

    id: str
    model: str
    verdict: Kind
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
    """Return the verdict that a document is. Raises KeyError or TypeError if it is none."""
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
    """The verdicts so far, by the place of their answer among all, of which there are `total`. `num_before` are those
    of earlier runs."""

    total: int = 0
    num_before: int = 0
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        found = [each.verdict for each in self.verdicts.values()]
        return {verdict: found.count(verdict) for verdict in (SAME, DIFFERENT, UNKNOWN)}


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

    def add(self, verdict: Verdict, digest: str) -> None:
        self.append({**verdict.as_document(), "digest": digest})


def digest_of(saved: Saved, model: str | None) -> str:
    """Return what identifies a saved answer and the model that computes it: None is its own."""
    parts = [saved.fields, saved.choices, saved.usage, saved.fingerprint, saved.seed, saved.route, saved.model, model]
    try:
        content = msgspec.json.encode(parts, order="sorted")
    except (ValueError, OverflowError, RecursionError):  # such as an integer of more than 64 bits
        content = repr(parts).encode(errors="surrogatepass")
    return hashlib.sha256(content).hexdigest()[:32]
