"""The replica of a cluster, as Ray Serve loads it: `build` is the import path of every application."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack
from typing import Any

import msgspec
from ray import serve
from ray.serve import Application

from onward.compose.backend import start_engine
from onward.engines.child.worker import EXIT_CRASHED
from onward.engines.cluster.config import ModelConfig
from onward.engines.cluster.deployment import DEPLOYMENT, deployment_options
from onward.engines.cluster.messages import PROTOCOL, ReplicaInfo
from onward.engines.cluster.replica import EngineReplica
from onward.model_files.vocabulary import vocabulary_digest

log = logging.getLogger("onward.engine")


def build(model: dict[str, Any]) -> Application:
    """Return the application of a ModelConfig, which is checked. Called by Ray Serve."""
    config = msgspec.convert(model, ModelConfig)
    deployment = serve.deployment(OnwardReplica, name=DEPLOYMENT).options(**deployment_options(config))
    return deployment.bind(msgspec.to_builtins(config))


class OnwardReplica(EngineReplica):
    """A replica with an engine of this installation. Made on the node that runs it. Raises SetupError."""

    def __init__(self, model: dict[str, Any]) -> None:
        config = msgspec.convert(model, ModelConfig)
        with ExitStack() as on_failure:
            served = start_engine(config.settings(), log.info, on_failure, threads=config.threads)
            on_failure.pop_all()
        info = ReplicaInfo(
            protocol=PROTOCOL,
            model_id=served.found.id,
            model=config.model,
            created=served.found.created,
            vocabulary=vocabulary_digest(served.tokenizer),
            engine=served.engine.info,
            started=time.time(),
        )
        name = serve.get_replica_context().replica_id.unique_id
        super().__init__(served.engine, info, name=name, exit=lambda: os._exit(EXIT_CRASHED))

    def __del__(self) -> None:
        """Called by Ray Serve when the replica has been drained."""
        if hasattr(self, "_engine"):
            self.stop()
