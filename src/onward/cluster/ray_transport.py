"""Calls to replicas over a Ray Serve deployment handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from onward.cluster import watchers
from onward.cluster.deployment import DEPLOYMENT
from onward.cluster.messages import BrokenMessage, Route
from onward.cluster.transport import OnMembers, Refused, ReplicaLost

ROUTE_SECONDS = 10.0
"""How long a call may wait for a replica: those that fit were there when it was made."""
POLL_SECONDS = 1.0


class RayTransport:
    """Implements `transport.Transport` for an application of the Ray cluster that this process has joined."""

    def __init__(self, application: str) -> None:
        self._application = application
        handle: Any = serve.get_deployment_handle(DEPLOYMENT, application)
        # The first call of `options` starts the router, which begins to hear of replicas.
        self._run = handle.options(method_name="run", stream=True)
        self._cancel_choice = handle.options(method_name="cancel_choice")

    def watch(self, on_members: OnMembers) -> None:
        watchers.watch(self._application, on_members)

    async def run(self, payload: bytes, route: Route) -> AsyncGenerator[bytes]:
        calls = self._run.remote(payload, route)
        try:
            item = await self._first(calls, route)
            while True:
                yield item
                item = await anext(calls)
        except StopAsyncIteration:
            return
        except RayTaskError as error:
            if isinstance(error.cause, BrokenMessage):
                raise Refused(str(error.cause)) from None
            raise ReplicaLost(_sentence(error)) from None
        except (RayError, RayServeException) as error:
            raise ReplicaLost(_sentence(error)) from None
        finally:
            calls.cancel()

    async def cancel_choice(self, route: Route, job: int, choice: int) -> None:
        try:
            await self._cancel_choice.remote(route.call, job, choice, route)
        except (RayError, RayServeException) as error:
            raise ReplicaLost(_sentence(error)) from None

    def close(self) -> None:
        watchers.unwatch(self._application)

    async def _first(self, calls: Any, route: Route) -> bytes:
        """Wait for the first item. It may wait long at a replica, but not for one."""
        first = asyncio.ensure_future(anext(calls))
        first.add_done_callback(lambda done: done.cancelled() or done.exception())
        waited = 0.0
        try:
            while not (await asyncio.wait({first}, timeout=POLL_SECONDS))[0]:
                waited += POLL_SECONDS
                if route.replica is None and waited >= ROUTE_SECONDS:
                    raise ReplicaLost("no replica took the call")
            item: bytes = first.result()
            return item
        finally:
            first.cancel()


def _sentence(error: Exception) -> str:
    """Return the first line of an error of Ray, which may have many."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
