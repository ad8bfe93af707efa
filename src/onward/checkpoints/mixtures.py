"""Mixtures of experts (Shazeer et al. 2017): feed-forward layers of which each token uses a few, chosen by a router.

What files state of them, and their tensors as one per layer, wherever experts are stored one by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Mixture
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor
from onward.checkpoints.types import FLOAT8, MXFP4, OCTETS
from onward.errors import CheckpointError

MAX_EXPERTS = 1024
"""Of a layer; llama.cpp's limit is 512 (src/llama-hparams.h)."""
_MAX_MATRICES = 262_144
"""Of the experts of a model, three times those of any."""
SOFTMAX, SIGMOID, SOFTMAX_OF_CHOSEN = 1, 2, 3
"""llama.cpp's numbers: shares of all experts, each one's own, or shares of those chosen
(llama_expert_gating_func_type)."""
_ONE = re.compile(r"blk\.(?P<layer>\d+)\.ffn_(?P<part>gate|up|down)\.(?P<expert>0|[1-9]\d{0,4})\.weight")
_STACKED = re.compile(r"blk\.\d+\.ffn_(gate|up|down)(_exps|\.(0|[1-9]\d{0,4}))\.(weight|bias)")
_BOTH = re.compile(r"(?P<prefix>blk\.\d+\.ffn_)gate_up(?P<kind>(_exps|_shexp)?\.weight)")
_OF_GPT_OSS = re.compile(
    r"(?P<prefix>blk\.\d+\.ffn_)(?P<part>gate_up|down)_exps\.(?P<kind>inputs_first|codes|exponents|biases)"
)
_CODE_BYTES = 16
"""Of a block of MXFP4, without its exponent."""
_EMPTY = np.empty(0, np.uint8)


def is_of_experts(name: str) -> bool:
    """Return whether a tensor is of experts."""
    return _STACKED.fullmatch(name) is not None


def has_experts(parameters: Parameters) -> bool:
    """Return whether a file of an architecture that may have experts has some: more than one, as in llama.cpp. Raises
    CheckpointError for one that uses some, and has none."""
    count = parameters.integer("expert_count", 0)
    used = parameters.own("expert_used_count")
    if count == 0 and used is not None and np.any(np.asarray(used)):
        raise CheckpointError(
            f"{parameters.where} uses a mixture of experts ('expert_used_count'), but does not state how many there "
            "are ('expert_count')."
        )
    return count > 1


def mixture_of(
    parameters: Parameters,
    *,
    feed_forward: int,
    is_normalised: bool,
    rules: Sequence[int] = (SOFTMAX, SOFTMAX_OF_CHOSEN),
) -> Mixture:
    """Return what a file states. `feed_forward`: of an expert, where it states none; `is_normalised`: whether the
    weights of the experts that are used are divided by their sum, where it does not say; `rules`: by which experts may
    be chosen, the usual one first. Raises CheckpointError."""
    where, layers = parameters.where, parameters.num_layers()
    count = parameters.integer("expert_count", minimum=1)
    used = parameters.same_in_layers("expert_used_count", layers)
    if used > count or count > MAX_EXPERTS:
        raise CheckpointError(f"{where} uses {used} of {count} experts ('expert_used_count'), which no model can.")
    if not feed_forward and parameters.own("expert_feed_forward_length") is None:
        raise CheckpointError(f"{where} does not state how wide an expert is ('expert_feed_forward_length').")
    rule = parameters.integer("expert_gating_func", rules[0])
    if rule not in rules:
        raise CheckpointError(
            f"{where} chooses experts by rule {rule} ('expert_gating_func'), which Onward does not compute."
        )
    switches = parameters.switches("expert.layers", layers)
    return Mixture(
        count=count,
        used=used,
        feed_forward=parameters.same_in_layers("expert_feed_forward_length", layers, feed_forward),
        layers=frozenset(layer for layer in range(layers) if switches is None or switches[layer]),
        is_normalised=rule == SOFTMAX_OF_CHOSEN or parameters.switch("expert_weights_norm", is_normalised),
        scale=parameters.real("expert_weights_scale", 1.0) or 1.0,
        is_sigmoid=rule == SIGMOID,
        shared_feed_forward=parameters.integer("expert_shared_feed_forward_length", 0),
    )


def with_groups(mixture: Mixture, parameters: Parameters) -> Mixture:
    """Return a mixture with the groups that a file states. Raises CheckpointError for those that no model can have."""
    groups = parameters.integer("expert_group_count", 1) or 1
    if groups == 1:
        return mixture
    used, size = parameters.integer("expert_group_used_count", minimum=1), mixture.count // groups
    is_possible = mixture.count % groups == 0 and used <= groups and mixture.used <= used * size
    if not is_possible or size < (2 if mixture.is_sigmoid else 1):
        raise CheckpointError(
            f"{parameters.where} uses {mixture.used} of {mixture.count} experts, from {used} "
            f"('expert_group_used_count') of {groups} groups ('expert_group_count'), which no model can."
        )
    return replace(mixture, groups=groups, used_groups=used)


def joined_experts(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Return tensors with those of experts that are stored one by one as one of each layer, [experts, rows, inputs],
    and with gates apart from what they are multiplied with. `where` names the file.

    Raises CheckpointError for an expert that is missing among others, or differs from them, for codes of weights
    without their exponents, and for more experts than any model has.
    """
    require_few_matrices((tensor for name, tensor in tensors.items() if "_exps." in name), where)
    found: dict[str, Tensor] = {}
    apart: dict[str, dict[int, Tensor]] = {}
    for name, tensor in with_halves_apart(_with_pairs_apart(tensors, where)):
        matched = _ONE.fullmatch(name)
        if matched is None:
            found[name] = tensor
        else:
            joined = f"blk.{matched['layer']}.ffn_{matched['part']}_exps.weight"
            apart.setdefault(joined, {})[int(matched["expert"])] = tensor
    for name, experts in apart.items():
        if name in found:
            raise CheckpointError(f"{where} has {name!r} in one and by expert: it is broken.")
        found[name] = _joined(name, experts, where)
    return found


def require_few_matrices(experts: Iterable[Tensor], where: str) -> None:
    """Raise CheckpointError for more matrices than any model's experts have, before each of them becomes a tensor: a
    small file can state millions."""
    if sum(tensor.shape[0] for tensor in experts if len(tensor.shape) > 2) > _MAX_MATRICES:
        raise CheckpointError(f"{where} has more matrices of experts than any model: it is broken.")


def _with_pairs_apart(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Return tensors with those that gpt-oss's folders have of experts as others have them: a matrix [rows, inputs] of
    each expert, gates apart from what they are multiplied with, of which they are every second row. No weights are
    read. Raises CheckpointError for those of any other form."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        matched = _OF_GPT_OSS.fullmatch(name)
        if matched is None:
            found[name] = tensor
            continue
        if matched["kind"] == "exponents" and name.replace("exponents", "codes") in tensors:
            continue
        whole = _whole(name, matched["kind"], tensors, where)
        parts = {"gate": slice(0, None, 2), "up": slice(1, None, 2)} if matched["part"] == "gate_up" else {}
        end = "bias" if matched["kind"] == "biases" else "weight"
        for part, rows in (parts or {matched["part"]: slice(None)}).items():
            own = f"{matched['prefix']}{part}_exps.{end}"
            if own in found:
                raise CheckpointError(f"{where} has {own!r} in two forms: it is broken.")
            found[own] = _every(own, whole, rows)
    return found


def _whole(name: str, kind: str, tensors: Mapping[str, Tensor], where: str) -> Tensor:
    """Return matrices of all experts, [rows, inputs] each, or biases, [experts, rows]."""
    tensor = tensors[name]
    is_floats = tensor.type.block_weights == 1 and tensor.type not in (OCTETS, FLOAT8)
    count, *sizes = tensor.shape
    if count <= MAX_EXPERTS:
        if kind == "biases" and is_floats and len(sizes) == 1:
            return replace(tensor, data=tensor.data.reshape(count, sizes[0], -1))
        if kind == "inputs_first" and is_floats and len(sizes) == 2:
            return with_rows_first(tensor)
        exponents = tensors.get(name.replace("codes", "exponents"))
        if kind == "codes" and exponents and _belong_together(tensor, exponents):
            return stacked(name, _coded(name, tensor, exponents))
    raise CheckpointError(
        f"{where} has experts as {tensor.type.name} {list(tensor.shape)} ({name!r}), which do not fit to others, or "
        "which no model has."
    )


def with_rows_first(tensor: Tensor) -> Tensor:
    """Return matrices of experts, [experts, inputs, rows], as [experts, rows, inputs]; those that are no floats, or of
    more experts than any model has, as they are, for whoever checks shapes."""
    is_floats = tensor.type.block_weights == 1 and tensor.type not in (OCTETS, FLOAT8) and not tensor.parts
    if len(tensor.shape) != 3 or tensor.shape[0] > MAX_EXPERTS or not is_floats:
        return tensor
    return stacked(tensor.name, [tensor.part(expert).transposed() for expert in range(tensor.shape[0])])


def _belong_together(codes: Tensor, exponents: Tensor) -> bool:
    are_octets = codes.type == exponents.type == OCTETS
    return are_octets and len(exponents.shape) == 3 and codes.shape == (*exponents.shape, _CODE_BYTES)


def _coded(name: str, codes: Tensor, exponents: Tensor) -> list[Tensor]:
    count, rows, blocks = exponents.shape
    both = codes.data.reshape(count, rows, blocks * _CODE_BYTES), exponents.data.reshape(exponents.shape)
    shape = rows, blocks * MXFP4.block_weights
    return [Tensor(name, shape, MXFP4, each, block_scales=apart) for each, apart in zip(*both, strict=True)]


def _every(name: str, whole: Tensor, rows: slice) -> Tensor:
    """Return some rows of matrices, or some numbers of biases."""
    if not whole.parts:
        data = whole.data[:, rows]
        return replace(whole, name=name, shape=data.shape[:2], data=data)
    count = len(range(whole.shape[1])[rows])
    return stacked(name, [
        replace(
            part, shape=(count, part.shape[1]), data=part.data[rows],
            block_scales=None if part.block_scales is None else part.block_scales[rows],
        )
        for part in whole.parts
    ])  # fmt: skip


def stacked(name: str, parts: list[Tensor]) -> Tensor:
    """Return one tensor of all experts, whose matrices [rows, inputs] these are."""
    first = parts[0]
    return Tensor(name, (len(parts), *first.shape), first.type, _EMPTY, parts=tuple(parts))


def with_halves_apart(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors with those that contain gate and up, one after the other, as two."""
    for name, tensor in tensors.items():
        matched = _BOTH.fullmatch(name)
        if matched is None or len(tensor.shape) < 2 or tensor.shape[-2] % 2:
            yield name, tensor
            continue
        for half, part in enumerate(("gate", "up")):
            shape = (*tensor.shape[:-2], tensor.shape[-2] // 2, tensor.shape[-1])
            parts = [tensor.part(expert) for expert in range(shape[0])] if len(shape) == 3 else [tensor]
            # of all experts the same array: each with its own would take as much memory as a part of their weights
            is_scaled = parts[0].scales is not None or parts[0].block_scales is not None
            rows = np.arange(half * shape[-2], (half + 1) * shape[-2]) if is_scaled else None
            halves = tuple(_half(each, shape[-2:], half, rows) for each in parts)
            new_name = f"{matched['prefix']}{part}{matched['kind']}"
            yield new_name, Tensor(new_name, shape, tensor.type, _EMPTY, parts=halves) if len(shape) == 3 else halves[0]


def _half(tensor: Tensor, shape: tuple[int, ...], index: int, rows: NDArray[np.int64] | None) -> Tensor:
    """Return the first or the second half of a matrix's rows, or of a vector; `shape` is that of a half, `rows` which
    rows are selected of a matrix with scales."""
    if rows is not None:
        return tensor.selected(rows)
    return replace(tensor, shape=shape, data=np.split(tensor.data, 2)[index])


def _joined(name: str, experts: Mapping[int, Tensor], where: str) -> Tensor:
    part = name.removesuffix("_exps.weight")
    for expert in range(len(experts)):
        if expert not in experts:
            raise CheckpointError(f"{where} has no tensor '{part}.{expert}.weight': it is not a complete model.")
    first = experts[0]
    for expert in range(len(experts)):
        if (experts[expert].shape, experts[expert].type) != (first.shape, first.type):
            raise CheckpointError(
                f"{where}: '{part}.{expert}.weight' is {experts[expert].type.name} {list(experts[expert].shape)}, but "
                f"'{part}.0.weight' is {first.type.name} {list(first.shape)}."
            )
    return stacked(name, [experts[expert] for expert in range(len(experts))])
