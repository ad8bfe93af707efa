"""The load of an engine that may be lost: totals go on over restarts."""

from __future__ import annotations

import msgspec

from onward.engine.client import TOTALS, EngineLoad


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
            load = msgspec.structs.replace(load, **totals, drafts=lost.drafts + load.drafts)
        self.current = load

    def engine_lost(self) -> None:
        """The current engine is gone, with its sequences and its KV cache."""
        totals = {name: getattr(self.current, name) for name in TOTALS}
        self._lost = self.current = EngineLoad(**totals, drafts=self.current.drafts, num_blocks=self.current.num_blocks)
