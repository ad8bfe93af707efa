"""Totals of what an engine has done."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from onward.engine.drafter import Source
from onward.engine_load import DraftCounts


@dataclass(slots=True)
class Counters:
    """Totals since the start. Modified on the engine thread only. `drafts` is replaced, never modified."""

    num_steps: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_cached_tokens: int = 0
    drafts: DraftCounts = field(default_factory=DraftCounts)

    def count_draft(self, source: Source, num_accepted: int, num_rejected: int) -> None:
        """Count an evaluated draft. Its accepted tokens count as decoded, too."""
        self.num_decode_tokens += num_accepted
        old = self.drafts
        if source == "prediction":
            new = (old.prediction_accepted + num_accepted, old.prediction_rejected + num_rejected)
            self.drafts = msgspec.structs.replace(old, prediction_accepted=new[0], prediction_rejected=new[1])
        elif source == "grammar":
            new = (old.grammar_accepted + num_accepted, old.grammar_rejected + num_rejected)
            self.drafts = msgspec.structs.replace(old, grammar_accepted=new[0], grammar_rejected=new[1])
        else:
            new = (old.lookup_accepted + num_accepted, old.lookup_rejected + num_rejected)
            self.drafts = msgspec.structs.replace(old, lookup_accepted=new[0], lookup_rejected=new[1])
