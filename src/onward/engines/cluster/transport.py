"""How calls reach replicas: what `ClusterEngine` needs of it. `ray_transport` is the one used in production."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from typing import Protocol

from onward.engines.cluster.members import Member

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


class ReplicaTransport(Protocol):
    """Reaches the replicas of one model. Except for `watch` and `close`, used on one event loop."""

    @property
    def silent(self) -> Collection[str]:
        """The replicas that should get no calls: they have sent nothing for long, or their frames ended lately."""
        ...

    def watch(self, on_members: OnMembers) -> None:
        """Begin to report the replicas."""
        ...

    def run(self, call: int, replica: str, payload: bytes) -> AsyncGenerator[bytes]:
        """Run encoded jobs as a call on a replica, and yield what it sends. Closing it cancels them.

        `call` is a number that no other call of any face has. Raises ReplicaLost, Refused.
        """
        ...

    async def cancel_choice(self, call: int, replica: str, job: int, choice: int) -> None:
        """Have a replica cancel a choice of a call. Raises ReplicaLost."""
        ...

    def close(self) -> None:
        """Stop reporting, and cancel all calls."""
        ...
