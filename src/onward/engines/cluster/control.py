"""Makes a cluster serve what cluster.toml says, and describes what it serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from onward.engines.cluster.config import ModelConfig
from onward.engines.cluster.connection import PREFIX, applications
from onward.engines.cluster.deployment import application_name, build_application
from onward.errors import SetupError

Others = Literal["ask", "keep", "remove"]

POLL_SECONDS = 1.0
GRACE_SECONDS = 2.0
"""How long a deployment that was just replaced may still be reported as running."""


def deploy(
    models: Sequence[ModelConfig], progress: Callable[[str], None], timeout_seconds: float, others: Others = "ask"
) -> None:
    """Make the cluster that this process has joined serve these models, and wait until it does.

    Replicas of a model that changes are replaced one after the other; streams end on the old ones. `others`: what to do
    with other models that it serves. Raises SetupError, for "ask" where there are any.
    """
    from ray import serve

    names = [application_name(model.model) for model in models]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SetupError(f"Two models are named {twice[0].removeprefix(PREFIX)}: a cluster serves each name once.")
    serve.start(proxy_location="Disabled")
    for name in to_remove(applications(), names, others):
        progress(f"Removing {name.removeprefix(PREFIX)}")
        serve.delete(name)
    targets = [
        serve.RunTarget(target=build_application(msgspec.to_builtins(model)), name=name, route_prefix=None)
        for name, model in zip(names, models, strict=True)
    ]
    serve.run_many(targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)
    wait_until_running(names, progress, timeout_seconds)


def to_remove(running: Iterable[str], names: Sequence[str], others: Others) -> list[str]:
    """Return the applications that are to be removed where `names` are deployed. Raises SetupError for "ask"."""
    found = sorted(set(running) - set(names))
    if found and others == "ask":
        shown = ", ".join(name.removeprefix(PREFIX) for name in found)
        raise SetupError(
            f"The cluster also serves {shown}, which you have not named. Pass --remove-others to stop serving that, or "
            "--keep-others to leave it as it is. Nothing was changed."
        )
    return found if others == "remove" else []


def wait_until_running(names: Sequence[str], progress: Callable[[str], None], timeout_seconds: float) -> None:
    """Wait until applications run. Raises SetupError if one cannot, or has not in time."""
    deadline, shown = time.monotonic() + timeout_seconds, ""
    begun = time.monotonic()
    while True:
        states = applications()
        waiting = []
        for name in names:
            state = states.get(name)
            status = "DEPLOYING" if state is None else str(getattr(state.status, "value", state.status))
            if status in ("DEPLOY_FAILED", "UNHEALTHY"):
                raise SetupError(f"{name.removeprefix(PREFIX)} does not run: {_reason(state)}")
            if status != "RUNNING" or time.monotonic() - begun < GRACE_SECONDS:
                waiting.append(f"{name.removeprefix(PREFIX)} ({_replicas(state)})")
        if not waiting:
            return
        if (words := f"Waiting for {', '.join(waiting)}") != shown:
            progress(words)
            shown = words
        if time.monotonic() > deadline:
            raise SetupError(
                f"After {timeout_seconds:g} seconds the cluster still waits for {', '.join(waiting)}. Do its nodes "
                "have the processors, GPUs and resources of cluster.toml? It keeps trying: `onward cluster status`."
            )
        time.sleep(POLL_SECONDS)


def describe() -> dict[str, Any]:
    """Return what the cluster that this process has joined serves, and its nodes: an object of JSON."""
    import ray

    nodes = [
        {
            "address": node["NodeManagerAddress"],
            "alive": node["Alive"],
            "resources": {n: v for n, v in sorted(node["Resources"].items()) if ":" not in n},
        }
        for node in ray.nodes()
    ]
    models = [
        {
            "id": name.removeprefix(PREFIX),
            "status": str(getattr(state.status, "value", state.status)).lower(),
            "replicas": _replicas(state),
            "detail": _reason(state),
        }
        for name, state in sorted(applications().items())
    ]
    return {"object": "cluster", "models": models, "nodes": nodes}


def remove_all(progress: Callable[[str], None]) -> bool:
    """Remove Onward's applications, after their streams have ended; return whether others remain on Ray Serve."""
    from ray import serve

    for name in applications():
        progress(f"Removing {name.removeprefix(PREFIX)}")
        serve.delete(name)
    has_others = bool(serve.status().applications)
    if not has_others:
        serve.shutdown()
    return has_others


def _replicas(state: Any) -> str:
    """Return the replicas of an application by their states, as words."""
    counts: dict[str, int] = {}
    for deployment in getattr(state, "deployments", {}).values():
        for name, count in deployment.replica_states.items():
            counts[str(getattr(name, "value", name)).lower()] = (
                counts.get(str(getattr(name, "value", name)).lower(), 0) + count
            )
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count) or "none yet"


def _reason(state: Any) -> str:
    """Return why an application does not run, in one line."""
    messages = [getattr(state, "message", "")]
    messages += [deployment.message for deployment in getattr(state, "deployments", {}).values()]
    lines = [line.strip() for message in messages for line in (message or "").splitlines() if line.strip()]
    errors = [line for line in lines if "SetupError" in line]
    return (errors or lines or [""])[-1]
