"""The request router of the replicas' deployment: Ray Serve runs it in every process that calls them."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from onward.cluster import watchers
from onward.cluster.members import Member
from onward.cluster.messages import ReplicaInfo, Route, decode_load
from onward.errors import SetupError
from onward.routing.router import Router

MAX_RANKED = 3
"""Replicas that are offered for a call. The second matters only where the first dies just then."""


class PrefixRouter(RequestRouter):  # type: ignore[misc]  # Ray is not always installed where types are checked
    """Ranks replicas by `routing.router.Router` for calls with a `Route` as their second argument.

    All methods run on the event loop of Ray's routers.
    """

    def initialize_state(self, **kwargs: Any) -> None:
        """Called once by Ray Serve."""
        self._prefixes = Router()
        self._infos: dict[str, ReplicaInfo] = {}
        self._running: dict[str, tuple[str, int]] = {}
        """Replica and size of each call, by its id."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """These are the replicas now, with what they reported last."""
        super().update_replicas(replicas)
        members: dict[str, Member] = {}
        for replica in replicas:
            name = replica.replica_id.unique_id
            try:
                info = self._infos.get(name) or ReplicaInfo.decode(replica.replica_metadata)
            except SetupError:
                continue  # of another version: not for this process
            load = decode_load(replica.routing_stats)
            members[name] = Member(name, info, load)
            self._prefixes.reported(name, load.num_running + load.num_waiting)
        self._infos = {name: member.info for name, member in members.items()}
        self._prefixes.set_replicas(members, {name: info.engine.max_rows for name, info in self._infos.items()})
        watchers.publish(self.app_name, members)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the replicas that may have a call, each a rank of its own, the best one first."""
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if pending_request is None:
            return [list(candidate_replicas)]
        pending_request.routing_context.should_backoff = True  # if nobody takes it
        route = _route_of(pending_request)
        if route is None:
            return [list(candidate_replicas)]
        if route.only is not None:  # one that is gone needs no message: any other ignores it
            return [[by_name.get(route.only, candidate_replicas[0])]]
        fit = {
            name for name in by_name if (info := self._infos.get(name)) and info.engine.fingerprint == route.fingerprint
        }
        ranked = self._prefixes.rank(route.keys, route.size, fit - set(route.avoid) or fit, MAX_RANKED)
        return [[by_name[name]] for name in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """A call goes to a replica."""
        route = _route_of(pending_request)
        if route is None or route.only is not None:
            return
        route.replica = name = replica_id.unique_id
        self._running[pending_request.metadata.internal_request_id] = name, route.size
        self._prefixes.begin(name, route.keys, route.size)
        watchers.routed(route.call, name)

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """A call has ended, whether well or not."""
        running = self._running.pop(internal_request_id, None)
        if running is not None:
            self._prefixes.end(*running)


def _route_of(pending_request: PendingRequest) -> Route | None:
    return next((argument for argument in pending_request.args if isinstance(argument, Route)), None)
