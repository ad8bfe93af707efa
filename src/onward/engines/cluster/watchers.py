"""Who is notified of the replicas of an application. Apart from the router, because Ray pickles its class with its
globals."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onward.engines.cluster.members import Member

_watchers: dict[str, Callable[[Mapping[str, Member]], None]] = {}
_members: dict[str, Mapping[str, Member]] = {}
_problems: dict[str, str] = {}


def watch(application: str, on_members: Callable[[Mapping[str, Member]], None]) -> None:
    """Have `on_members` called with the replicas of an application now, and whenever they change: on the router's
    thread. Takes the place of an earlier call for the same application; there may be no router yet."""
    _watchers[application] = on_members
    if application in _members:
        on_members(_members[application])


def unwatch(application: str) -> None:
    """Undo `watch`."""
    _watchers.pop(application, None)


def problem(application: str) -> str:
    """Return why this process cannot use some replicas of an application, a sentence; "" if it can use all."""
    return _problems.get(application, "")


def publish(application: str, members: Mapping[str, Member], problem: str = "") -> None:
    """Publish the replicas of an application that this process can use, and why it cannot use others. Called by its
    router."""
    _members[application] = members
    _problems[application] = problem
    if (on_members := _watchers.get(application)) is not None:
        on_members(members)
