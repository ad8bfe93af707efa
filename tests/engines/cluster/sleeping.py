"""Replicas whose engine sleeps in each step, as one does that waits for a GPU: several fit on two cores."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
from ray import serve

from onward.engine.step import Engine
from onward.engine.thread import EngineThread
from onward.engines.cluster.config import ModelConfig
from onward.engines.cluster.deployment import DEPLOYMENT, deployment_options
from onward.engines.cluster.messages import PROTOCOL, ReplicaInfo
from onward.engines.cluster.replica import EngineReplica
from onward.model_files.toy import ToyTokenizer
from onward.model_files.vocabulary import vocabulary_digest
from onward.runtimes.toy.model import ToyModel
from onward.sampling.sampler import Sampler


class SleepingModel(ToyModel):
    """Sleeps `seconds` before each step."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def evaluate(self, *arguments: Any, **keywords: Any) -> Any:
        time.sleep(self.seconds)
        return super().evaluate(*arguments, **keywords)


def sleeping_engine(seconds: float, fingerprint: str, max_rows: int = 64) -> EngineThread:
    """Return an engine of the toy model with slow steps."""
    model, tokenizer = SleepingModel(seconds), ToyTokenizer()
    engine = Engine(model, tokenizer, Sampler(model.vocab_size, 1), max_rows=max_rows, load_tokenizer=lambda: tokenizer)
    return EngineThread(engine, name="sleeping", fingerprint=fingerprint)


class SleepingReplica(EngineReplica):
    """`fingerprint` is that of its results, whatever they are."""

    def __init__(self, seconds: float, fingerprint: str, max_rows: int) -> None:
        engine = sleeping_engine(seconds, fingerprint, max_rows)
        vocabulary = vocabulary_digest(ToyTokenizer())
        info = ReplicaInfo(PROTOCOL, "toy", "toy", 1, vocabulary, engine.info, time.time())
        super().__init__(engine, info, name=serve.get_replica_context().replica_id.unique_id)

    def record_replica_metadata(self) -> dict[str, Any]:
        return {**super().record_replica_metadata(), "pid": os.getpid()}


def build_sleeping(*, seconds: float, fingerprint: str, max_rows: int = 64, **config: Any) -> Any:
    """Return the application of sleeping replicas. `config`: fields of a ModelConfig."""
    model = msgspec.convert({"model": "toy", "engine": {"max_rows": max_rows}, **config}, ModelConfig)
    deployment = serve.deployment(SleepingReplica, name=DEPLOYMENT).options(**deployment_options(model))
    return deployment.bind(seconds, fingerprint, max_rows)
