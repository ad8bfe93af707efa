"""Calls to replicas over a Ray Serve deployment handle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from onward.engines.cluster import watchers
from onward.engines.cluster.channels import Channels
from onward.engines.cluster.deployment import DEPLOYMENT
from onward.engines.cluster.messages import Calls, ReplicaRoute
from onward.engines.cluster.transport import OnMembers, Refused, ReplicaLost
from onward.ipc.frames import BrokenMessage


class RayTransport:
    """Implements `transport.ReplicaTransport` for an application of the Ray cluster that this process has joined."""

    def __init__(self, application: str) -> None:
        self._application = application
        self._handle = _Handle(application)
        self._channels = Channels(self._handle)

    @property
    def silent(self) -> tuple[str, ...]:
        return self._channels.silent

    def watch(self, on_members: OnMembers) -> None:
        watchers.watch(self._application, on_members)

    def run(self, call: int, replica: str, payload: bytes) -> AsyncGenerator[bytes]:
        return self._channels.stream(call, replica, payload)

    async def cancel_choice(self, call: int, replica: str, job: int, choice: int) -> None:
        await self._handle.cancel_choice(call, job, choice, ReplicaRoute(replica, face=""))

    def close(self) -> None:
        watchers.unwatch(self._application)
        self._channels.close()


class _Handle:
    """Implements `channels.Listener`: the methods of the replicas of an application."""

    def __init__(self, application: str) -> None:
        handle: Any = serve.get_deployment_handle(DEPLOYMENT, application)
        # The first call of `options` starts the router, which begins to receive updates about replicas.
        self._run = handle.options(method_name="run")
        self._listen = handle.options(method_name="listen", stream=True)
        self._cancel = handle.options(method_name="cancel")
        self._cancel_choice = handle.options(method_name="cancel_choice")

    async def run(self, calls: Calls, route: ReplicaRoute) -> None:
        response = self._run.remote(calls, route)
        try:
            with _losses():
                await response
        except asyncio.CancelledError:
            response.cancel()
            raise

    async def cancel(self, calls: list[int], route: ReplicaRoute) -> None:
        with _losses():
            await self._cancel.remote(calls, route)

    async def cancel_choice(self, call: int, job: int, choice: int, route: ReplicaRoute) -> None:
        with _losses():
            await self._cancel_choice.remote(call, job, choice, route)

    async def listen(self, route: ReplicaRoute) -> AsyncGenerator[bytes]:
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
        raise ReplicaLost(_sentence(error), is_strike=not isinstance(error.cause, LookupError)) from None
    except (RayError, RayServeException) as error:
        raise ReplicaLost(_sentence(error)) from None


def _sentence(error: Exception) -> str:
    """Return the first line of an error of Ray, which may have many."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
