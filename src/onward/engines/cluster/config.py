"""cluster.toml: which models a cluster serves, with how many replicas, and what each replica needs."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from onward.errors import SetupError
from onward.settings import Settings, options, resolve, upstream_of

ENGINE_SETTINGS = (
    "cache_dir", "context_length", "draft", "engine", "engine_arg", "engine_path", "engine_process", "engine_timeout",
    "kv_memory", "max_rows", "offline", "precision", "prefix_cache", "prefix_cache_dir", "prefix_cache_disk",
    "runtime", "speculation", "threads", "weights",
)  # fmt: skip
"""The settings that a model's table may have, under their own names."""
REPEATABLE = frozenset({"draft", "engine", "engine_arg", "engine_path"})
"""Those of them that may be lists."""
AUTOSCALING = ("target_requests", "upscale_delay_seconds", "downscale_delay_seconds")
"""What says when replicas are added and removed, where there may be more of them."""
MAX_FILE_BYTES = 1_000_000

Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One [[model]] table.

    `model`: as in --model; a path must exist on every node. `replicas`: a number, or with `max_replicas` the least.
    `target_requests`: calls of one replica above which another one is started; by default 0.7 of the rows that it
    computes. `cpus`, `gpus`, `resources`: what Ray reserves for a replica, the last by names of your own.
    `drain_seconds`: how long a replica that leaves may finish its streams; then others resume them. `engine`:
    settings of the engine.
    """

    model: str
    replicas: Count = 1
    max_replicas: Count | None = None
    target_requests: Amount | None = None
    upscale_delay_seconds: Seconds = 10.0
    downscale_delay_seconds: Seconds = 300.0
    cpus: Amount = 1.0
    gpus: Amount = 0.0
    resources: dict[str, float] = {}
    drain_seconds: Seconds = 600.0
    health_check_seconds: Annotated[float, Meta(gt=0)] = 5.0
    environment: dict[str, str] = {}
    engine: dict[str, Any] = {}

    @property
    def threads(self) -> int:
        """How many threads an engine has unless its settings say: what is reserved is what is used. 0: any number."""
        return int(self.cpus)

    def settings(self) -> Settings:
        """Return the settings of a replica's engine, as far as they are stated. Raises SetupError."""
        flags = {name: _as_flag(name, value) for name, value in self.engine.items()}
        return resolve({"model": [self.model], **flags}, environ={}, config=Path(os.devnull)).settings


def _as_flag(name: str, value: Any) -> str | list[str]:
    """Return what a setting's flag has, or is repeated with."""
    if name in REPEATABLE:
        return [_as_text(each) for each in (value if isinstance(value, list) else [value])]
    return _as_text(value)


def _as_text(value: Any) -> str:
    """Return a value of TOML as the text of a flag."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_config(path: Path) -> list[ModelConfig]:
    """Return the models of a cluster.toml. Raises SetupError."""
    try:
        content = path.read_bytes()
        if len(content) > MAX_FILE_BYTES:
            raise SetupError(f"{path} is larger than {MAX_FILE_BYTES:,} bytes: it is not a cluster.toml.")
        table = tomllib.loads(content.decode())
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{path} is not TOML: {error}.") from None
    return parse_config(table, str(path))


def parse_config(table: Mapping[str, Any], origin: str) -> list[ModelConfig]:
    """Return the models of a parsed cluster.toml. Raises SetupError, which names `origin`."""
    unknown = [name for name in table if name != "model"]
    if unknown:
        raise SetupError(f"{origin} has {unknown[0]!r}, which is not known: it consists of [[model]] tables.")
    tables = table.get("model", [])
    if not isinstance(tables, list) or not tables:
        raise SetupError(f'{origin} has no [[model]] table: add one with a line such as model = "storyteller".')
    return [_parse_model(each, f"model {number} of {origin}") for number, each in enumerate(tables, 1)]


def _parse_model(table: Mapping[str, Any], origin: str) -> ModelConfig:
    own = set(ModelConfig.__struct_fields__) - {"engine"}
    for name in table:
        if name not in own and name not in ENGINE_SETTINGS:
            close = difflib.get_close_matches(name, [*own, *ENGINE_SETTINGS], n=1)
            hint = (
                f"; did you mean {close[0]}?"
                if close
                else f". It may have {', '.join(sorted([*own, *ENGINE_SETTINGS]))}."
            )
            raise SetupError(f"{name} in {origin} is not known{hint}")
    engine = {name: value for name, value in table.items() if name in ENGINE_SETTINGS}
    try:
        model = msgspec.convert({**{n: v for n, v in table.items() if n in own}, "engine": engine}, ModelConfig)
    except msgspec.ValidationError as error:
        raise SetupError(f"{origin}: {error}.") from None
    if upstream_of(model.model) is not None:
        raise SetupError(f"{origin}: {model.model} is computed by another server already; give it to `onward serve`.")
    if model.max_replicas is None and (stated := [name for name in AUTOSCALING if name in table]):
        raise SetupError(f"{origin}: {stated[0]} has no effect without max_replicas: add that, or leave it out.")
    if model.max_replicas is not None and model.max_replicas < model.replicas:
        raise SetupError(f"{origin}: max_replicas is {model.max_replicas}, less than replicas, {model.replicas}.")
    for option in options():
        if option.name in engine:
            option.parse(_as_flag(option.name, engine[option.name]), origin)  # an error names the key and the table
    model.settings()
    return model
