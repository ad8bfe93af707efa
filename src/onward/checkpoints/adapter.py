"""LoRA adapters (Hu et al. 2021): low-rank changes of linear layers, as PEFT's folders and GGUF files have them.

The weights become W + scale · B · A, B being [rows, rank] and A [rank, inputs].
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from onward.checkpoints.arrange import arranged, gguf_name, name_without_experts
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.folder import with_kinds_apart
from onward.checkpoints.gguf import read_gguf
from onward.checkpoints.json_files import read_object
from onward.checkpoints.mixtures import is_of_experts, with_halves_apart
from onward.checkpoints.parameters import LISTS, MAX_SCALE, Parameters
from onward.checkpoints.paths import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from onward.checkpoints.safetensors import read_safetensors
from onward.checkpoints.state_spaces import states_multipliers
from onward.checkpoints.table import declared
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.types import FLOAT32
from onward.errors import CheckpointError

Scale = Callable[[int], float]
"""The factor of B · A for a rank."""
_PEFT_NAME = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])(\.default)?\.weight")
_GGUF_NAME = re.compile(r"(?P<name>.+)\.lora_(?P<side>[ab])")
_CHANGES = {
    "use_dora": "DoRA",
    "use_qalora": "groups of inputs",
    "modules_to_save": "whole layers in addition to the adapter",
    "alpha_pattern": "a scale per layer",
    "layer_replication": "replicated layers",
    "trainable_token_indices": "trained tokens",
    "target_parameters": "parameters that are not linear layers",
    "alora_invocation_tokens": "changes that begin after certain tokens (aLoRA)",
    "lora_bias": "biases",
}
"""Statements of adapter_config.json that change more than linear layers, and what they stand for."""
_PLAIN = frozenset({
    "peft_type", "task_type", "peft_version", "base_model_name_or_path", "revision", "auto_mapping", "inference_mode",
    "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "bias", "fan_in_fan_out", "use_rslora",
    "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "megatron_core", "eva_config",
    "qalora_group_size",
})  # fmt: skip
"""Statements that do not rule out a plain sum (peft's LoraConfig): they concern training, or what the tensors show as
well."""
_PLAIN_BEGINNINGS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base's weights as they were. Others (PiSSA, OLoRA, CorDA, LoftQ) belong
to weights that were changed when the training began."""
_PLAIN_GGUF = frozenset({"adapter.type", "adapter.lora.alpha", "adapter.lora.task_name", "adapter.lora.prompt_prefix"})


_CONVOLUTIONS = ("shortconv.conv.weight", "ssm_conv1d.weight")
_NO_PRODUCTS = ("norm.weight", ".ssm_a", ".ssm_d")
"""Ends of the names of tensors that may have two dimensions, and are no linear layers."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The two matrices of one layer, by GGUF's name of its weights."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True, slots=True)
class Change:
    """What an adapter adds to one layer: scale · high · low, [rows, rank] and [rank, inputs]."""

    low: Tensor
    high: Tensor
    scale: float


def merged(base: Tensor, change: Change) -> Tensor:
    """Return a tensor plus its change in float32, with the same bits on any machine: each product and sum is rounded
    once, in the order of the ranks. For what is looked up and not multiplied."""
    values, low, high = base.floats(), change.low.floats() * np.float32(change.scale), change.high.floats()
    for rank in range(len(low)):
        values += high[:, rank : rank + 1] * low[rank]
    return Tensor(base.name, base.shape, FLOAT32, np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8))


def read_changes(checkpoint: Checkpoint, path: Path) -> tuple[tuple[Path, ...], dict[str, Change]]:
    """Return an adapter's files, and its changes by the names of the checkpoint's tensors. Raises CheckpointError for
    one that is broken, was made for another model, or changes more than linear layers."""
    paths, scale_of, pairs = _read(path, checkpoint.parameters)
    found = {}
    for name, pair in pairs.items():
        if is_of_experts(name) or name.endswith(_CONVOLUTIONS + _NO_PRODUCTS):
            kind = "convolutions" if name.endswith(_CONVOLUTIONS) else "numbers that multiply no input"
            kind = "experts" if is_of_experts(name) else kind
            raise CheckpointError(f"{path} changes {kind} ({name!r}), which Onward does not compute.")
        base = checkpoint.tensors.get(name)
        if base is None:
            raise CheckpointError(f"{path} changes {name!r}, which {checkpoint.paths[0]} does not have.")
        _require_shapes(base, pair, path)
        found[name] = Change(pair.low, pair.high, _finite_scale(scale_of, pair.low.shape[0], path))
    return paths, found


def _finite_scale(scale_of: Scale, rank: int, path: Path) -> float:
    """Return the factor for a rank. Raises CheckpointError for one that no adapter has."""
    try:
        scale = scale_of(rank)
    except OverflowError:  # an integer that no float has
        scale = math.inf
    if not abs(scale) <= MAX_SCALE:
        raise CheckpointError(f"{path} states an alpha that is not a finite number, or larger than {MAX_SCALE:g}.")
    return scale


def _require_shapes(base: Tensor, pair: _Pair, path: Path) -> None:
    rows, inputs = base.shape[0], base.shape[-1]
    rank = pair.low.shape[0]
    if len(base.shape) != 2 or pair.low.shape != (rank, inputs) or pair.high.shape != (rows, rank):
        raise CheckpointError(
            f"{path} was made for another model: its change of {base.name!r} has the shapes {list(pair.high.shape)} "
            f"and {list(pair.low.shape)}, but the weights are {list(base.shape)}."
        )


def _read(path: Path, parameters: Parameters) -> tuple[tuple[Path, ...], Scale, dict[str, _Pair]]:
    """Return the adapter's files, the scale for a rank, and the pairs by the names of the weights."""
    if declared(parameters.architecture).has_multipliers and path.is_dir() != states_multipliers(parameters):
        raise CheckpointError(
            f"{path} cannot change {parameters.where}: Falcon-H1's multipliers are part of the weights in GGUF files, "
            "and in adapters for them, but not in folders. Use a folder's adapter with a folder, and a file with a "
            "file."
        )
    if path.is_dir():
        return _read_peft(path, parameters)
    return _read_gguf(path, parameters)


def _read_peft(folder: Path, parameters: Parameters) -> tuple[tuple[Path, ...], Scale, dict[str, _Pair]]:
    config, weights = folder / ADAPTER_CONFIG, folder / ADAPTER_WEIGHTS
    stated = read_object(config)
    if stated.get("peft_type", "LORA") != "LORA":
        raise CheckpointError(f"{config} is a {str(stated['peft_type'])[:40]!r} adapter; Onward computes LORA.")
    for name, meaning in _CHANGES.items():
        if stated.get(name):
            raise CheckpointError(f"{config} uses {meaning} ({name!r}), which Onward does not compute.")
    if stated.get("bias", "none") != "none":
        raise CheckpointError(f"{config} has biases ('bias'), which Onward does not compute.")
    beginning = stated.get("init_lora_weights")
    if not (beginning is None or isinstance(beginning, bool | str)) or beginning not in _PLAIN_BEGINNINGS:
        raise CheckpointError(
            f"{config} belongs to weights that were changed when its training began ('init_lora_weights': "
            f"{str(beginning)[:40]!r}): convert it with peft (`save_pretrained(..., path_initial_model_for_weight_"
            "conversion=...)`)."
        )
    for name, value in stated.items():
        if value and name not in _PLAIN:
            raise CheckpointError(f"{config} states {name[:40]!r}, which Onward does not support in an adapter.")
    alpha, is_root = stated.get("lora_alpha", 8), bool(stated.get("use_rslora"))
    if not isinstance(alpha, int | float):
        raise CheckpointError(f"{config} states {str(alpha)[:40]!r} as 'lora_alpha', which is not a number.")
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in read_safetensors(weights).items():
        found = _PEFT_NAME.fullmatch(name)
        if found is None:
            raise CheckpointError(f"{weights} has a tensor {name[:80]!r}, which Onward does not compute.")
        weight = name_without_experts(gguf_name(f"{found['module']}.weight", parameters.architecture), parameters)
        sides.setdefault(weight, {})[found["side"].lower()] = tensor
    pairs = _pairs(sides, parameters, weights, is_peft=True)
    return (weights, config), lambda rank: alpha / (math.sqrt(rank) if is_root else rank), pairs


def _read_gguf(path: Path, parameters: Parameters) -> tuple[tuple[Path, ...], Scale, dict[str, _Pair]]:
    found = read_gguf(path)
    stated = Parameters(found.metadata, str(path))
    kind = stated.text("general.type", "model", whole_name=True), found.metadata.get("adapter.type", "lora")
    if kind != ("adapter", "lora"):
        raise CheckpointError(f"{path} is not a LoRA adapter, but a {kind[0]}: pass it with --model.")
    if stated.architecture != parameters.architecture:
        raise CheckpointError(f"{path} was made for {stated.architecture!r}, not for {parameters.architecture!r}.")
    for name, value in found.metadata.items():
        is_stated = len(value) > 0 if isinstance(value, LISTS) else bool(value)
        if name.startswith("adapter.") and name not in _PLAIN_GGUF and is_stated:
            raise CheckpointError(f"{path} states {name[:80]!r}, which Onward does not compute.")
    alpha = found.metadata.get("adapter.lora.alpha", 0.0)
    if not isinstance(alpha, int | float):
        raise CheckpointError(f"{path} states {str(alpha)[:40]!r} as 'adapter.lora.alpha', which is not a number.")
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in found.tensors.items():
        matched = _GGUF_NAME.fullmatch(name)
        if matched is None:
            raise CheckpointError(f"{path} has a tensor {name[:80]!r}, which Onward does not compute.")
        sides.setdefault(matched["name"], {})[matched["side"]] = tensor
    pairs = _pairs(sides, parameters, path, is_peft=False)
    return found.paths, lambda rank: alpha / rank if alpha else 1.0, pairs


def _pairs(
    sides: Mapping[str, Mapping[str, Tensor]], parameters: Parameters, path: Path, *, is_peft: bool
) -> dict[str, _Pair]:
    """Return complete pairs, with rows apart and in order as the weights have them."""
    own, found = declared(parameters.architecture), dict[str, _Pair]()
    has_pairs = own.has_pairs_in_folders if is_peft else own.has_pairs_in_gguf
    for name, both in sides.items():
        if set(both) != {"a", "b"} or any(len(each.shape) != 2 for each in both.values()):
            raise CheckpointError(f"{path} is broken (the change of {name[:80]!r} is not two matrices).")
        high = replace(both["b"], name=name)
        if is_peft:
            high = with_kinds_apart(parameters, high)
        low = both["a"]
        if own.adapter_order is not None:
            low, high = own.adapter_order(parameters, low, high, is_peft)
        apart = dict(with_halves_apart({name: high}))
        for part, tensor in arranged(parameters, apart, has_pairs=has_pairs).items():
            found[part] = _Pair(low, tensor)
    if not found:
        raise CheckpointError(f"{path} changes nothing.")
    return found
