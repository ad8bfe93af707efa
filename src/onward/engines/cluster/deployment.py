"""What Ray Serve is asked for: an application per model, each with one deployment of replicas, and how many of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import msgspec

from onward.engines.cluster.config import ModelConfig
from onward.engines.cluster.connection import PREFIX

DEPLOYMENT = "Engine"
"""The name of the one deployment of each application."""
IMPORT_PATH = "onward.compose.replica:build"
"""The builder of an application; its arguments are a ModelConfig as an object of JSON."""
REPLICA_ROUTER = "onward.engines.cluster.replica_router:ReplicaRouter"
AUTOSCALING_BY_CALLS = f"{__name__}:replicas_for_calls"
AUTOSCALING_BY_ROWS = f"{__name__}:replicas_for_rows"
MAX_CALLS = 10_000
"""Batches of calls that a replica takes: its engine queues them. Which one has room is decided where calls are made."""
STATS_SECONDS = 1.0
"""How often replicas report their load."""
LOAD_PER_ROW = 0.7
"""Calls per row of a replica above which another one is started, unless `target_requests` says how many calls."""

CALLS = "onward_calls"
"""What replicas report: calls that have not ended. Ray's own counts are those of its calls, which hold several."""
CALLS_PER_ROW = "onward_calls_per_row"
"""The same, divided by the rows that the replica's engine computes together."""


def application_name(model: str) -> str:
    """Return the name of a model's application: of letters, digits, dots, dashes and underscores."""
    return PREFIX + re.sub(r"[^\w.-]+", "-", model.rstrip("/").rpartition("/")[2] or model).strip("-")


def deployment_options(model: ModelConfig) -> dict[str, Any]:
    """Return the options of a model's deployment, as of `serve.deployment`."""
    scaling: dict[str, Any] = {"num_replicas": model.replicas}
    if model.max_replicas is not None:
        policy = AUTOSCALING_BY_CALLS if model.target_requests else AUTOSCALING_BY_ROWS
        scaling = {
            "autoscaling_config": {
                "min_replicas": model.replicas,
                "max_replicas": model.max_replicas,
                "target_ongoing_requests": model.target_requests or LOAD_PER_ROW,
                "upscale_delay_s": model.upscale_delay_seconds,
                "downscale_delay_s": model.downscale_delay_seconds,
                "policy": {"policy_function": policy},
            }
        }
    actor: dict[str, Any] = {"num_cpus": model.cpus, "num_gpus": model.gpus, "resources": model.resources}
    if model.environment:
        actor["runtime_env"] = {"env_vars": model.environment}
    return {
        **scaling,
        "ray_actor_options": actor,
        "max_ongoing_requests": MAX_CALLS,
        "graceful_shutdown_timeout_s": model.drain_seconds,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": model.health_check_seconds,
        "request_router_config": {
            "request_router_class": REPLICA_ROUTER,
            "request_routing_stats_period_s": STATS_SECONDS,
        },
    }


def build_application(model: dict[str, Any]) -> Any:
    """Return the application of a ModelConfig as an object of JSON, by IMPORT_PATH: as Ray Serve itself does."""
    module, _, name = IMPORT_PATH.partition(":")
    return getattr(import_module(module), name)(model)


def serve_config(models: Sequence[ModelConfig]) -> dict[str, Any]:
    """Return the configuration for `serve deploy` that serves these models, as an object of YAML."""
    return {
        "proxy_location": "Disabled",
        "applications": [
            {
                "name": application_name(model.model),
                "route_prefix": None,
                "import_path": IMPORT_PATH,
                "args": msgspec.to_builtins(model),
            }
            for model in models
        ],
    }


def replicas_for_calls(context: Any) -> tuple[float, dict[str, Any]]:
    """Return how many replicas all calls need at so many calls per replica, not rounded.

    `context`: an `AutoscalingContext` of Ray Serve, which applies the limits and delays to the result.
    """
    return _replicas_for(context, CALLS), {}


def replicas_for_rows(context: Any) -> tuple[float, dict[str, Any]]:
    """As `replicas_for_calls`, at so many calls per row of a replica."""
    return _replicas_for(context, CALLS_PER_ROW), {}


def _replicas_for(context: Any, reported: str) -> float:
    """A replica that has not reported yet has no calls."""
    by_replica: dict[str, float] = (context.aggregated_metrics or {}).get(reported, {})
    return sum(by_replica.values()) / float(context.config.get_target_ongoing_requests())
