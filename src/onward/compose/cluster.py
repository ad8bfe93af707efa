"""Models whose engines are replicas of a Ray cluster: their tokenizers are here, and every token is computed there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, aclosing, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from onward.compose.upstreams import resolve_model
from onward.engines.cluster import watchers
from onward.engines.cluster.config import ENGINE_SETTINGS
from onward.engines.cluster.connection import PREFIX, applications, connect
from onward.engines.cluster.engine import ClusterEngine
from onward.engines.cluster.members import Member, Members
from onward.engines.cluster.messages import encode
from onward.engines.cluster.transport import ReplicaLost
from onward.errors import SetupError
from onward.model_files.base import Progress
from onward.model_files.vocabulary import vocabulary_digest
from onward.models.resolve import ResolvedModel
from onward.settings import Settings

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer
    from onward.engines.cluster.ray_transport import RayTransport

FACE_SETTINGS = {"cache_dir", "offline"}
"""Settings of replicas that apply to this server too: they concern the files of tokenizers."""
ANSWER_SECONDS = 10.0
POLL_SECONDS = 1.0
START_SECONDS = 300.0
"""How long to wait for the first replica of an application that is being deployed."""


def connect_models(
    settings: Settings, progress: Progress, on_failure: ExitStack
) -> list[tuple[ResolvedModel, Tokenizer, ClusterEngine]]:
    """Join the cluster of the settings; return its models. `on_failure` closes what was opened. Raises SetupError."""
    address = settings.cluster or "auto"
    _refuse_settings(settings)
    progress(f"Joining the Ray cluster at {address}")
    connect(address)
    found = applications()
    if not found:
        raise SetupError(f"The Ray cluster at {address} serves no model of Onward: run `onward cluster up` first.")
    served = [_connect(name, settings, progress, on_failure) for name in sorted(found)]
    names = [model.id for model, _, _ in served]
    for name, _ in settings.tokenizer:
        if name not in names:
            raise SetupError(f"--tokenizer {name}=… names no model of the cluster, which serves {', '.join(names)}.")
    return served


def _refuse_settings(settings: Settings) -> None:
    """Raise SetupError for a setting that would have no effect here, because it belongs to the replicas."""
    defaults = Settings()
    if settings.model != defaults.model:
        raise SetupError("--cluster serves the models of the cluster: leave --model out, or put it into cluster.toml.")
    if settings.lora:
        raise SetupError("Replicas have no adapters: serve --lora without --cluster.")
    for name in ENGINE_SETTINGS:
        if name not in FACE_SETTINGS and getattr(settings, name) != getattr(defaults, name):
            flag = "--" + name.replace("_", "-")
            raise SetupError(
                f"{flag} is a setting of the replicas: put {name} into cluster.toml, and leave it out here."
            )


def _connect(
    application: str, settings: Settings, progress: Progress, on_failure: ExitStack
) -> tuple[ResolvedModel, Tokenizer, ClusterEngine]:
    from onward.engines.cluster.ray_transport import RayTransport

    progress(f"Waiting for a replica of {application.removeprefix(PREFIX)}")
    transport = RayTransport(application)
    on_failure.callback(transport.close)
    found_members = _first_members(application, transport)
    info = next(iter(found_members.values())).info
    word = dict(settings.tokenizer).get(info.model_id) or info.model
    found = resolve_model(word, settings, progress, must_be_computed=False)
    tokenizer = found.files.load_tokenizer(settings.cache_dir)
    vocabulary = vocabulary_digest(tokenizer)
    if vocabulary != info.vocabulary:
        raise SetupError(
            f"The tokenizer of {word} on this machine is not that of the cluster's {info.model_id}: pass "
            f"--tokenizer {info.model_id}=MODEL with the same model."
        )
    asyncio.run(_check_answers(transport, found_members))
    members = Members(vocabulary, info.engine.context_length)
    engine = ClusterEngine(info.model_id, transport, info.engine, members, settings.engine_wait)
    on_failure.callback(engine.stop)
    return replace(found, id=info.model_id), tokenizer, engine


async def _check_answers(transport: RayTransport, replicas: Iterable[str]) -> None:
    """Make an empty call to one replica after another until something comes back. Raises SetupError if nothing does:
    Ray drops what does not have the right token, and neither side hears of it."""
    for replica in replicas:
        with suppress(TimeoutError, ReplicaLost):
            async with asyncio.timeout(ANSWER_SECONDS), aclosing(transport.run(0, replica, encode([]))) as items:
                async for _ in items:
                    pass
                return
    raise SetupError(
        "The cluster's replicas do not answer this machine. If the cluster was started without authentication "
        "and this account has a token in ~/.ray, set RAY_AUTH_MODE=disabled; otherwise check for a firewall between "
        "them."
    )


def _first_members(application: str, transport: RayTransport) -> Mapping[str, Member]:
    """Wait until an application has replicas. Raises SetupError if it has none in time, or cannot be deployed."""
    arrived: SimpleQueue[Mapping[str, Member]] = SimpleQueue()
    transport.watch(arrived.put)
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if members := arrived.get(timeout=POLL_SECONDS):
                return members
        except Empty:
            if problem := watchers.problem(application):
                raise SetupError(problem) from None
            state = applications().get(application)
            if state is None or state.status in ("DEPLOY_FAILED", "DELETING"):
                reason = getattr(state, "message", "") or "it was deleted"
                raise SetupError(f"{application} does not run on the cluster: {reason}") from None
    raise SetupError(
        f"{application} has had no replica for {START_SECONDS:g} seconds: do the nodes have the processors, memory or "
        "GPUs that cluster.toml asks for? `onward cluster status` shows what it waits for."
    )
