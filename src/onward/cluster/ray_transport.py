"""Calls to replicas over a Ray Serve deployment handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from onward.cluster import watchers
from onward.cluster.channels import Channels
from onward.cluster.deployment import DEPLOYMENT
from onward.cluster.messages import BrokenMessage, Route
from onward.cluster.transport import OnMembers, Refused, ReplicaLost


class RayTransport:
    """Implements `transport.Transport` for an application of the Ray cluster that this process has joined."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._channels = Channels(self._listen_to)
        handle: Any = serve.get_deployment_handle(DEPLOYMENT, application)
        # The first call of `options` starts the router, which begins to hear of replicas.
        self._run = handle.options(method_name="run")
        self._listen = handle.options(method_name="listen", stream=True)
        self._cancel_choice = handle.options(method_name="cancel_choice")

    def watch(self, on_members: OnMembers) -> None:
        watchers.watch(self._application, on_members)

    async def run(self, payload: bytes, route: Route) -> AsyncGenerator[bytes]:
        loop, channels = asyncio.get_running_loop(), self._channels
        route.avoid = (*route.avoid, *channels.silent)

        def attach(replica: str) -> None:
            loop.call_soon_threadsafe(channels.attach, route.call, replica)

        with watchers.following(route.call, attach):
            async with aclosing(channels.stream(route, lambda: self._call(payload, route))) as items:
                async for item in items:
                    yield item

    async def cancel_choice(self, route: Route, job: int, choice: int) -> None:
        with _losses():
            await self._cancel_choice.remote(route.call, job, choice, route)

    def close(self) -> None:
        watchers.unwatch(self._application)
        self._channels.close()

    async def _call(self, payload: bytes, route: Route) -> None:
        """Have a replica run a call to its end; cancel it with this task. Raises ReplicaLost, Refused."""
        response = self._run.remote(payload, route)
        try:
            with _losses():
                await response
        except asyncio.CancelledError:
            response.cancel()
            raise

    async def _listen_to(self, replica: str, route: Route) -> AsyncGenerator[bytes]:
        frames = self._listen.remote(route)
        try:
            with _losses():
                async for frame in frames:
                    yield frame
        finally:
            frames.cancel()


@contextmanager
def _losses() -> Iterator[None]:
    """Raise the errors of Ray as ReplicaLost and Refused."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, BrokenMessage):
            raise Refused(str(error.cause)) from None
        raise ReplicaLost(_sentence(error)) from None
    except (RayError, RayServeException) as error:
        raise ReplicaLost(_sentence(error)) from None


def _sentence(error: Exception) -> str:
    """Return the first line of an error of Ray, which may have many."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
