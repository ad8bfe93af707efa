"""How calls reach replicas: what `ClusterEngine` needs of it. `ray_transport` is the one that people use."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

from onward.cluster.members import Member
from onward.cluster.messages import Route

OnMembers = Callable[[Mapping[str, Member]], None]
"""Receives all replicas whenever one of them, or its load, changes. Called on any thread."""


class ReplicaLost(Exception):
    """A call has lost its replica, or could not reach one. The text is a sentence for the log.

    `is_strike`: whether the call may have been the cause.
    """

    def __init__(self, text: str, *, is_strike: bool = True) -> None:
        super().__init__(text)
        self.is_strike = is_strike


class Refused(Exception):
    """A replica cannot run a call, and no other one could. The text is a sentence for the log."""


class Transport(Protocol):
    """Reaches the replicas of one model. Except for `watch` and `close`, used on one event loop."""

    def watch(self, on_members: OnMembers) -> None:
        """Begin to report the replicas."""
        ...

    def run(self, payload: bytes, route: Route) -> AsyncGenerator[bytes]:
        """Run encoded jobs on the replica that `route` leads to, and yield what it sends. `route.replica` is set when
        the first item arrives, or before ReplicaLost is raised where a replica was chosen. Closing it cancels the jobs.

        Raises ReplicaLost, Refused.
        """
        ...

    async def cancel_choice(self, route: Route, job: int, choice: int) -> None:
        """Have the replica `route.only` cancel a choice of the call. Raises ReplicaLost."""
        ...

    def close(self) -> None:
        """Stop reporting."""
        ...
