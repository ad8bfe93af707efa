"""cluster.toml, and the configurations made of it for Ray Serve and KubeRay."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from ruamel.yaml import YAML

from onward.engines.cluster.config import parse_config, read_config
from onward.engines.cluster.control import to_remove
from onward.engines.cluster.deployment import application_name, deployment_options, serve_config
from onward.engines.cluster.manifests import SECRET, ray_service, serve_yaml
from onward.errors import SetupError

RAY_SERVICE: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "ray.io/v1"},
        "kind": {"const": "RayService"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "required": ["serveConfigV2", "rayClusterConfig"],
            "additionalProperties": False,
            "properties": {
                "serveConfigV2": {"type": "string"},
                "rayClusterConfig": {
                    "type": "object",
                    "required": ["headGroupSpec"],
                    "additionalProperties": False,
                    "properties": {
                        "rayVersion": {"type": "string"},
                        "enableInTreeAutoscaling": {"type": "boolean"},
                        "authOptions": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {"mode": {"enum": ["disabled", "token"]}, "secretName": {"type": "string"}},
                        },
                        "headGroupSpec": {"$ref": "#/$defs/head"},
                        "workerGroupSpecs": {"type": "array", "items": {"$ref": "#/$defs/workers"}},
                    },
                },
            },
        },
    },
    "$defs": {
        "parameters": {"type": "object", "additionalProperties": {"type": "string"}},
        "template": {
            "type": "object",
            "required": ["spec"],
            "properties": {
                "spec": {
                    "type": "object",
                    "required": ["containers"],
                    "properties": {
                        "containers": {
                            "type": "array",
                            "minItems": 1,
                            "items": {"type": "object", "required": ["name", "image"]},
                        }
                    },
                }
            },
        },
        "head": {
            "type": "object",
            "required": ["template"],
            "additionalProperties": False,
            "properties": {
                "rayStartParams": {"$ref": "#/$defs/parameters"},
                "template": {"$ref": "#/$defs/template"},
            },
        },
        "workers": {
            "type": "object",
            "required": ["groupName", "maxReplicas", "minReplicas", "template"],
            "additionalProperties": False,
            "properties": {
                "groupName": {"type": "string"},
                "replicas": {"type": "integer", "minimum": 0},
                "minReplicas": {"type": "integer", "minimum": 0},
                "maxReplicas": {"type": "integer", "minimum": 1},
                "rayStartParams": {"$ref": "#/$defs/parameters"},
                "template": {"$ref": "#/$defs/template"},
            },
        },
    },
}
"""The part of KubeRay's definition of a RayService (ray.io/v1) that is used: names, types and what is required."""

FILE = """
[[model]]
model = "storyteller"
replicas = 2
max_replicas = 6
cpus = 2
max_rows = 32
precision = "exact"

[[model]]
model = "toy"
gpus = 1
resources = { big = 1 }
environment = { HF_HOME = "/models" }
engine_process = "off"
"""


def test_a_file_says_what_runs(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE, encoding="utf-8")
    storyteller, toy = read_config(path)
    settings = storyteller.settings()
    assert (settings.model, settings.max_rows, settings.precision) == (("storyteller",), 32, "exact")
    assert (settings.threads, storyteller.threads) == (0, 2)
    assert toy.settings().engine_process == "off"
    options = deployment_options(storyteller)
    assert options["autoscaling_config"]["max_replicas"] == 6
    scaling = options["autoscaling_config"]
    assert scaling["target_ongoing_requests"] == 0.7 and scaling["policy"]["policy_function"].endswith("_for_rows")
    scaling = deployment_options(msgspec.structs.replace(storyteller, target_requests=5))["autoscaling_config"]
    assert scaling["target_ongoing_requests"] == 5 and scaling["policy"]["policy_function"].endswith("_for_calls")
    assert "num_replicas" not in options
    options = deployment_options(toy)
    assert options["num_replicas"] == 1
    assert options["ray_actor_options"] == {
        "num_cpus": 1.0,
        "num_gpus": 1.0,
        "resources": {"big": 1.0},
        "runtime_env": {"env_vars": {"HF_HOME": "/models"}},
    }


def test_a_program_computes_a_model_with_a_gpu_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(
        "[[model]]\nmodel = '/models/m'\nreplicas = 2\ngpus = 1\nengine = 'vllm'\n"
        "engine_arg = ['vllm=--dtype=float16', 'vllm=--enforce-eager']\nengine_path = 'vllm=/opt/vllm'\n",
        encoding="utf-8",
    )
    [model] = read_config(path)
    settings = model.settings()
    assert settings.engine == (("", "vllm"),)
    assert settings.engine_arg == (("vllm", "--dtype=float16"), ("vllm", "--enforce-eager"))
    assert settings.engine_path == (("vllm", Path("/opt/vllm")),)
    assert deployment_options(model)["ray_actor_options"]["num_gpus"] == 1.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[model]]\nmodel = 'toy'\nengine = 'vlm'", "vlm"),
        ("", "has no [[model]] table"),
        ("model = 3", "has no [[model]] table"),
        ("[[model]]\nreplicas = 1", "missing required field `model`"),
        ("[[model]]\nmodel = 'toy'\nreplicas = 0", ">= 1"),
        ("[[model]]\nmodel = 'toy'\nreplica = 2", "did you mean replicas?"),
        ("[[model]]\nmodel = 'toy'\nmax_row = 2", "did you mean max_rows?"),
        ("[[model]]\nmodel = 'toy'\nhost = '0.0.0.0'", "host in model 1 of"),
        ("[[model]]\nmodel = 'toy'\nreplicas = 3\nmax_replicas = 2", "less than replicas"),
        ("[[model]]\nmodel = 'toy'\ntarget_requests = 3", "target_requests has no effect without max_replicas"),
        ("[[model]]\nmodel = 'toy'\nupscale_delay_seconds = 10.0", "upscale_delay_seconds has no effect without"),
        ("[[model]]\nmodel = 'toy'\nprecision = 'half'", "Invalid value 'half' for precision in model 1 of"),
        ("[[model]]\nmodel = 'toy'\nmax_rows = 'many'", "Invalid value 'many' for max_rows in model 1 of"),
        ("[[model]]\nmodel = 'x=vllm+http://a:1'", "computed by another server already"),
        ("[[models]]\nmodel = 'toy'", "'models', which is not known"),
        ("[[model", "is not TOML"),
    ],
)
def test_problems_of_a_file_are_reported_in_one_line(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SetupError) as raised:
        read_config(path)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be read"):
        read_config(tmp_path / "none.toml")


def test_applications_are_named_after_their_models() -> None:
    assert application_name("storyteller") == "onward-storyteller"
    assert application_name("/models/My Model/q4.gguf") == "onward-q4.gguf"
    assert application_name("hf.co/org/Name:Q4_K_M") == "onward-Name-Q4_K_M"


def test_models_that_are_not_named_are_removed_only_when_asked() -> None:
    running = ["onward-old", "onward-new"]
    with pytest.raises(SetupError, match=r"also serves old, .* --remove-others .* --keep-others"):
        to_remove(running, ["onward-new"], "ask")
    assert to_remove(running, ["onward-new"], "remove") == ["onward-old"]
    assert to_remove(running, ["onward-new"], "keep") == []
    assert to_remove(running, ["onward-new", "onward-old", "onward-more"], "ask") == []


def test_the_files_for_other_tools_hold_the_same_cluster(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE, encoding="utf-8")
    models = read_config(path)
    deployed = YAML(typ="safe").load(StringIO(serve_yaml(models)))
    assert deployed == serve_config(models)
    manifest = YAML(typ="safe").load(StringIO(ray_service(models, "registry/onward:1")))
    jsonschema.validate(manifest, RAY_SERVICE)
    assert YAML(typ="safe").load(StringIO(manifest["spec"]["serveConfigV2"])) == serve_config(models)
    cluster = manifest["spec"]["rayClusterConfig"]
    assert cluster["authOptions"] == {"mode": "token", "secretName": SECRET}
    assert cluster["enableInTreeAutoscaling"]
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"] == "registry/onward:1"
    first, second = cluster["workerGroupSpecs"]
    assert (first["groupName"], first["minReplicas"], first["maxReplicas"]) == ("storyteller", 2, 6)
    assert first["rayStartParams"] == {}
    assert second["rayStartParams"] == {"resources": '"{\\"big\\": 1.0}"'}
    (container,) = second["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "8Gi", "nvidia.com/gpu": "1"}
    assert "8000" not in str(container["readinessProbe"])


def test_the_default_is_one_replica() -> None:
    (model,) = parse_config({"model": [{"model": "storyteller"}]}, "--model")
    assert deployment_options(model)["num_replicas"] == 1
