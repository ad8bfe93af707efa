"""The cluster as files for other tools: Ray Serve's own configuration, and a RayService for KubeRay."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from math import ceil
from typing import Any

from ruamel.yaml import YAML

from onward.engines.cluster.config import ModelConfig
from onward.engines.cluster.connection import PREFIX
from onward.engines.cluster.deployment import application_name, serve_config

HEAD_CPUS, HEAD_MEMORY = 1, "2Gi"
WORKER_MEMORY = "8Gi"
SECRET = "onward-ray-token"
"""Name of the Kubernetes secret with Ray's token, which every pod of the cluster and every face gets."""
SECRET_KEY = "auth_token"
"""The name of the token in it, which is KubeRay's."""
AGENT_PORT = 52365
"""Where Ray's agent on each node reports the health of the node."""


def serve_yaml(models: Sequence[ModelConfig]) -> str:
    """Return onward.yaml, for `serve deploy onward.yaml`."""
    return _yaml(serve_config(models), "Written by `onward cluster config`. Use: serve deploy onward.yaml")


def ray_service(models: Sequence[ModelConfig], image: str) -> str:
    """Return a RayService manifest (ray.io/v1) that serves these models, each on pods with what its replicas need."""
    cluster: dict[str, Any] = {
        "rayVersion": _ray_version(),
        "authOptions": {"mode": "token", "secretName": SECRET},  # the operator uses it too, to deploy
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
            "template": _pod("ray-head", image, {"cpu": str(HEAD_CPUS), "memory": HEAD_MEMORY}),
        },
        "workerGroupSpecs": [_worker_group(model, image) for model in models],
    }
    if any(model.max_replicas for model in models):
        cluster["enableInTreeAutoscaling"] = True
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "onward"},
        "spec": {"serveConfigV2": _yaml(serve_config(models)), "rayClusterConfig": cluster},
    }
    note = (
        f"Written by `onward cluster config --kuberay`. Needs a secret: kubectl create secret generic {SECRET} "
        f"--from-literal={SECRET_KEY}=$(openssl rand -hex 32)"
    )
    return _yaml(manifest, note)


def _worker_group(model: ModelConfig, image: str) -> dict[str, Any]:
    """Return the pods of a model, with room for one replica each."""
    limits = {"cpu": str(max(1, ceil(model.cpus))), "memory": WORKER_MEMORY}
    if model.gpus:
        limits["nvidia.com/gpu"] = str(ceil(model.gpus))
    parameters = {}
    if model.resources:  # a word of a shell command, where KubeRay puts it
        parameters["resources"] = json.dumps(json.dumps(model.resources))
    pod = _pod("ray-worker", image, limits)
    # KubeRay's own probe waits for Serve's proxy, which does not run: faces call replicas.
    pod["spec"]["containers"][0]["readinessProbe"] = {
        "httpGet": {"path": "/api/local_raylet_healthz", "port": AGENT_PORT},
        "initialDelaySeconds": 10,
        "periodSeconds": 5,
        "timeoutSeconds": 2,
        "failureThreshold": 10,
    }
    return {
        "groupName": _group_name(model),
        "replicas": model.replicas,
        "minReplicas": model.replicas,
        "maxReplicas": model.max_replicas or model.replicas,
        "rayStartParams": parameters,
        "template": pod,
    }


def _group_name(model: ModelConfig) -> str:
    """Return the name of a model's pods: part of their names, so of small letters, digits and dashes."""
    name = application_name(model.model).removeprefix(PREFIX).lower()
    return re.sub(r"[^a-z0-9]+", "-", name).strip("-")[:40].strip("-") or "model"


def _pod(name: str, image: str, limits: dict[str, Any]) -> dict[str, Any]:
    """Return the template of a pod with one container of Ray."""
    container = {
        "name": name,
        "image": image,
        "env": [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}],
        "resources": {"limits": limits, "requests": dict(limits)},
    }
    return {"spec": {"containers": [container]}}


def _ray_version() -> str:
    try:
        return version("ray")
    except PackageNotFoundError:
        return "2.60.0"


def _yaml(value: Any, comment: str = "") -> str:
    """Return a document of YAML. Ray's own reader only knows the types of JSON."""
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 4096
    stream = StringIO()
    yaml.dump(value, stream)
    return f"# {comment}\n{stream.getvalue()}" if comment else stream.getvalue()
