"""The request router of the replicas' deployment: Ray Serve runs it in every process that calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from onward.engines.cluster import watchers
from onward.engines.cluster.members import Member
from onward.engines.cluster.messages import LoadReport, ReplicaInfo, ReplicaRoute
from onward.errors import SetupError


class ReplicaRouter(RequestRouter):  # type: ignore[misc]  # Ray is not always installed where types are checked
    """Sends each message to the replica that its `ReplicaRoute` names, and reports the replicas to `watchers`.

    Which replica computes what is decided by `placement`. All methods run on the event loop of Ray's routers.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Called once by Ray Serve."""
        self._members: dict[str, Member] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Called by Ray Serve with the present replicas and what they reported last."""
        super().update_replicas(replicas)
        members, problem = {}, ""
        for replica in replicas:
            try:
                member = self._member(replica)
                members[member.name] = member
            except SetupError as error:  # of another version: not for this process
                problem = str(error)
        self._members = members
        watchers.publish(self.app_name, members, problem)

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """A call has found a replica dead; the next update will leave it out too."""
        super().on_replica_actor_died(replica_id)
        self._members = {name: member for name, member in self._members.items() if name != replica_id.unique_id}
        watchers.publish(self.app_name, self._members)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[Sequence[RunningReplica]]:
        """Return the replica that a message is for. If it is gone, any other one: it does not accept the message."""
        route = None if pending_request is None else _route_of(pending_request)
        if route is None:
            return [candidate_replicas]
        named = [each for each in candidate_replicas if each.replica_id.unique_id == route.replica]
        return [named or candidate_replicas[:1]]

    def _member(self, replica: RunningReplica) -> Member:
        """Return a replica as its faces know it. Raises SetupError for one of another version."""
        name = replica.replica_id.unique_id
        info = self._members[name].info if name in self._members else ReplicaInfo.decode(replica.replica_metadata)
        report = LoadReport.decode(replica.routing_stats)
        return Member(name, info, report.load, report.number)


def _route_of(pending_request: PendingRequest) -> ReplicaRoute | None:
    return next((argument for argument in pending_request.args if isinstance(argument, ReplicaRoute)), None)
