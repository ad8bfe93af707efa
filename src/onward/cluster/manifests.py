"""The cluster as files for other tools: Ray Serve's own configuration, and a RayService for KubeRay."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from typing import Any

from ruamel.yaml import YAML

from onward.cluster.config import ModelConfig
from onward.cluster.deployment import serve_config

HEAD_CPUS, HEAD_MEMORY = 1, "2Gi"
WORKER_MEMORY = "8Gi"
SECRET = "onward-ray-token"
"""Name of the Kubernetes secret with Ray's token, which every pod of the cluster and every face gets."""


def serve_yaml(models: Sequence[ModelConfig]) -> str:
    """Return onward.yaml, for `serve deploy onward.yaml`."""
    return _yaml(serve_config(models), "Written by `onward cluster config`. Use: serve deploy onward.yaml")


def ray_service(models: Sequence[ModelConfig], image: str) -> str:
    """Return a RayService manifest (ray.io/v1) that serves these models on nodes of its own."""
    cpus = max(1, int(max(model.cpus for model in models)))
    gpus = int(max(model.gpus for model in models))
    total = sum((model.max_replicas or model.replicas) for model in models)
    limits: dict[str, Any] = {"cpu": str(cpus), "memory": WORKER_MEMORY}
    if gpus:
        limits["nvidia.com/gpu"] = str(gpus)
    cluster = {
        "rayVersion": _ray_version(),
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
            "template": _pod("ray-head", image, {"cpu": str(HEAD_CPUS), "memory": HEAD_MEMORY}),
        },
        "workerGroupSpecs": [
            {
                "groupName": "engines",
                "replicas": sum(model.replicas for model in models),
                "minReplicas": 1,
                "maxReplicas": total,
                "rayStartParams": {},
                "template": _pod("ray-worker", image, limits),
            }
        ],
    }
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "onward"},
        "spec": {"serveConfigV2": _yaml(serve_config(models)), "rayClusterConfig": cluster},
    }
    note = (
        f"Written by `onward cluster config --kuberay`. Needs a secret: kubectl create secret generic {SECRET} "
        "--from-literal=token=$(openssl rand -hex 32)"
    )
    return _yaml(manifest, note)


def _pod(name: str, image: str, limits: dict[str, Any]) -> dict[str, Any]:
    """Return the template of a pod with one container of Ray."""
    token = {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "token"}}}
    container = {
        "name": name,
        "image": image,
        "env": [{"name": "RAY_AUTH_MODE", "value": "token"}, token, {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}],
        "resources": {"limits": limits, "requests": dict(limits)},
    }
    return {"spec": {"containers": [container]}}


def _ray_version() -> str:
    try:
        return version("ray")
    except PackageNotFoundError:
        return "2.60.0"


def _yaml(value: Any, comment: str = "") -> str:
    """Return a document of YAML. Ray's own reader knows no types but those of JSON."""
    yaml = YAML()
    yaml.default_flow_style = False
    yaml.width = 4096
    stream = StringIO()
    yaml.dump(value, stream)
    return f"# {comment}\n{stream.getvalue()}" if comment else stream.getvalue()
