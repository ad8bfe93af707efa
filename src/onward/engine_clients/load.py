"""The load of an engine that may be lost: totals go on over restarts."""

from __future__ import annotations

import msgspec

from onward.engine.client import DraftCounts, EngineLoad

TOTALS = (
    "num_preemptions",
    "num_steps",
    "num_prefill_tokens",
    "num_decode_tokens",
    "num_cached_tokens",
)
"""The fields of EngineLoad that are totals since the start, besides `drafts`."""


class LoadHistory:
    """Adds what lost engines have counted to the load of the current one. `current` is the sum. Not thread-safe."""

    def __init__(self) -> None:
        self._lost = EngineLoad()
        self.current = EngineLoad()

    def reported(self, load: EngineLoad) -> None:
        """The current engine has reported its load."""
        lost = self._lost
        if lost.num_steps:
            totals = {name: getattr(lost, name) + getattr(load, name) for name in TOTALS}
            load = msgspec.structs.replace(load, **totals, drafts=_add(lost.drafts, load.drafts))
        self.current = load

    def engine_lost(self) -> None:
        """The current engine is gone, with its sequences and its KV cache."""
        totals = {name: getattr(self.current, name) for name in TOTALS}
        self._lost = self.current = EngineLoad(**totals, drafts=self.current.drafts, num_blocks=self.current.num_blocks)


def _add(left: DraftCounts, right: DraftCounts) -> DraftCounts:
    """Return the sums of all counts."""
    names = DraftCounts.__struct_fields__
    return DraftCounts(*(getattr(left, name) + getattr(right, name) for name in names))
