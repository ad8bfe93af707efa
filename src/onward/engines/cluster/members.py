"""The replicas that a face knows, and what follows from them: what the cluster serves now, and its load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from onward.engine.client import EngineInfo
from onward.engine_load import TOTALS, DraftCounts, EngineCounts, EngineLoad
from onward.engines.cluster.messages import ReplicaInfo

GAUGES = ("num_running", "num_waiting", "num_blocks", "num_used_blocks", "num_cached_blocks")


@dataclass(frozen=True, slots=True)
class Member:
    """A replica that takes calls. `report` numbers its reports of its load."""

    name: str
    info: ReplicaInfo
    load: EngineLoad
    report: int = 0


class Members:
    """The replicas of one model. Not thread-safe.

    A replica is *fit* if this face can use it: its tokens have the same bytes as those of the face's tokenizer, and its
    context is at least as long as the one that requests were planned for. Others are left alone.
    """

    def __init__(self, vocabulary: str, context_length: int = 0) -> None:
        self._vocabulary = vocabulary
        self._context_length = context_length
        self._members: dict[str, Member] = {}
        self._gone = EngineLoad()
        """Counts of the replicas that are gone."""

    def update(self, members: Mapping[str, Member]) -> None:
        """Record the present replicas. Those whose load is not known yet keep the last one."""
        for name, before in self._members.items():
            if name not in members:
                self._gone = _sum([self._gone, before.load], TOTALS)
        self._members = dict(members)

    @property
    def fit(self) -> dict[str, Member]:
        """The replicas that this face can use."""
        return {
            name: member
            for name, member in self._members.items()
            if member.info.vocabulary == self._vocabulary and member.info.engine.context_length >= self._context_length
        }

    @property
    def counts(self) -> EngineCounts:
        """How many replicas there are, and how many of them are fit."""
        return EngineCounts(len(self.fit), len(self._members))

    def with_fingerprint(self, fingerprint: str) -> list[str]:
        """Return the names of the fit replicas that compute these results."""
        return [name for name, member in self.fit.items() if member.info.engine.fingerprint == fingerprint]

    def serves(self, before: EngineInfo) -> EngineInfo:
        """Return what the cluster serves now: the results of most of its replicas, the newer ones where as many compute
        others; as before without any. `max_rows` are those of all together."""
        fit = list(self.fit.values())
        if not fit:
            return before
        counts = Counter(member.info.engine.fingerprint for member in fit)
        newest = {member.info.engine.fingerprint: member.info.started for member in sorted(fit, key=_started)}
        fingerprint = max(counts, key=lambda each: (counts[each], newest[each]))
        rows = sum(member.info.engine.max_rows for member in fit)
        return msgspec.structs.replace(before, fingerprint=fingerprint, max_rows=rows)

    def load(self) -> EngineLoad:
        """Return the sum of what all replicas are doing and have done, those that are gone included."""
        loads = [member.load for member in self._members.values()]
        return _sum([self._gone, *loads], (*TOTALS, *GAUGES))


def _started(member: Member) -> float:
    return member.info.started


def _sum(loads: list[EngineLoad], names: tuple[str, ...]) -> EngineLoad:
    """Return a load with the sums of these fields and of the counts of drafts."""
    sums = {name: sum(getattr(load, name) for load in loads) for name in names}
    return EngineLoad(**sums, drafts=sum((load.drafts for load in loads), DraftCounts()))
