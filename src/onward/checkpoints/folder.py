"""Folders as Hugging Face's libraries save them: config.json and safetensors files, one or several."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from onward.checkpoints.arrange import (
    OF_IMAGES,
    SKIPPED,
    arranged,
    gguf_name,
    has_norms_after,
    name_without_experts,
)
from onward.checkpoints.config import is_tied, metadata_of, of_texts, reads_images
from onward.checkpoints.json_files import read_object
from onward.checkpoints.parameters import MAX_LAYERS, PREDICTING, Parameters
from onward.checkpoints.paths import CONFIG, INDEX, QUANTISATION, SAFETENSORS, WHOLE
from onward.checkpoints.quantised import Quantised, only_matrices, quantised_of, with_scales
from onward.checkpoints.rope_scaling import factor_lists
from onward.checkpoints.safetensors import read_safetensors
from onward.checkpoints.table import declared
from onward.checkpoints.tensor import Tensor, few_floats, require_possible_shapes, vector
from onward.errors import CheckpointError

MAX_TENSORS = 393_216
"""Of a model. Experts that are stored one by one are up to 92,000, of which each has three scales in NVFP4 (Qwen 3.5
397B-A17B)."""
MAX_INDEX_BYTES = 48_000_000
"""Of the list of tensors, which is that long for so many."""
MAX_FILES = 1000
_OWN_PARTS = {
    "fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head_norm",
    "input_proj": "eh_proj", "token_layernorm": "enorm", "hidden_layernorm": "hnorm",
    "final_layernorm": "shared_head_norm", "eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm",
    "shared_head.norm": "shared_head_norm", "shared_head.head": "shared_head_head", "embed_tokens": "embed_tokens",
}  # fmt: skip
"""What such a layer has that others do not have, by GGUF's names."""
_HEAD_NORM = re.compile(r"(?P<layer>.+\.self_attn\.[qk]_)layernorm\.norms\.(?P<head>\d{1,4})\.weight")


def folder_paths(folder: Path) -> tuple[Path, ...]:
    """Return the safetensors files of a model in a folder. Raises CheckpointError."""
    if (folder / WHOLE).exists():
        return (folder / WHOLE,)
    if (folder / INDEX).exists():
        return tuple(folder / name for name in _listed_files(folder / INDEX))
    found = sorted(folder.glob(f"*{SAFETENSORS}"))
    if len(found) == 1:
        return tuple(found)
    raise CheckpointError(f"{folder} has neither {WHOLE} nor {INDEX}: copy or download it again.")


@dataclass(frozen=True, slots=True)
class Folder:
    """What a folder contains: files, what they state, tensors by GGUF's names; see `Checkpoint`."""

    paths: tuple[Path, ...]
    parameters: Parameters
    tensors: dict[str, Tensor]
    num_tokens: int | None
    is_tied: bool
    predictions: dict[str, Tensor]
    """Of layers that predict several tokens at once."""
    notes: tuple[str, ...] = ()


def read_configuration(folder: Path) -> tuple[dict[str, Any], Parameters, Quantised | None]:
    """Return the object in config.json, what it states of the model, and of quantised weights. Raises CheckpointError
    for what is not computed or not read."""
    whole = read_object(folder / CONFIG)
    config = of_texts(whole)
    parameters = Parameters(metadata_of(config, str(folder / CONFIG)), str(folder))
    if not config.get("quantization_config") and (path := folder / QUANTISATION).is_file():
        return whole, parameters, quantised_of(_of_modelopt(path), str(path))
    return whole, parameters, quantised_of(config, str(folder / CONFIG))


def _of_modelopt(path: Path) -> dict[str, Any]:
    """Return what ModelOpt's own file states as config.json would. Raises CheckpointError."""
    stated = read_object(path).get("quantization")
    if not isinstance(stated, dict):
        raise CheckpointError(f"{path} does not state how weights are quantised ('quantization'): download it again.")
    return {"quantization_config": {**stated, "quant_method": "modelopt"}}


def read_folder(folder: Path) -> Folder:
    """Read a folder. Raises CheckpointError."""
    whole, parameters, quantised = read_configuration(folder)
    config = of_texts(whole)
    notes: tuple[str, ...] = ()
    paths = folder_paths(folder)
    stored = _tensors(paths)
    if reads_images(whole):
        stored = {name: tensor for name, tensor in stored.items() if not name.startswith(OF_IMAGES)}
        notes = (f"{folder} reads images, too: that part is left out.",)
    stored = with_scales(stored, quantised, str(folder))
    require_possible_shapes(stored.values(), str(folder))
    stored, predicting = _without_predictions(parameters, stored)
    tensors = _named(parameters, _with_norms_together(stored, parameters.where))
    predictions = _named(parameters, predicting)
    for name, factors in factor_lists(parameters).items():
        tensors[name] = vector(name, np.asarray(factors, np.float32))
    has_pairs = declared(parameters.architecture).has_pairs_in_folders
    stated, embeddings = config.get("vocab_size"), tensors.get("token_embd.weight")
    rows = 0 if embeddings is None else embeddings.shape[0]
    return Folder(
        (*paths, *(path for name in (CONFIG, QUANTISATION) if (path := folder / name).is_file())),
        parameters,
        arranged(parameters, tensors, has_pairs=has_pairs),
        max(stated, rows) if type(stated) is int else None,
        is_tied(config),
        arranged(parameters, predictions, has_pairs=has_pairs),
        notes,
    )


def _without_predictions(
    parameters: Parameters, stored: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors of the model, and those of layers that predict several tokens, which are named as if they
    followed the others."""
    predicting_layers = declared(parameters.architecture).predicting
    if predicting_layers is None:
        return {**stored}, {}
    are_numbered_on = predicting_layers.are_numbered_on
    own: dict[str, Tensor] = {}
    predicting: dict[str, Tensor] = {}
    first = parameters.num_layers()
    last = first + parameters.integer(PREDICTING, 0) if are_numbered_on else first + MAX_LAYERS
    for name, tensor in stored.items():
        found = predicting_layers.names.fullmatch(name)
        layer = (0 if are_numbered_on else first) + int(found["layer"] or 0) if found else -1
        if found is None or not first <= layer < last:
            own[name] = tensor
            continue
        part, _, kind = found["rest"].rpartition(".")
        is_own = part in _OWN_PARTS
        renamed = f"blk.{layer}.nextn.{_OWN_PARTS[part]}.{kind}" if is_own else f"model.layers.{layer}.{found['rest']}"
        if renamed in predicting:
            raise CheckpointError(f"{parameters.where} has a tensor {name[:80]!r} twice, under different names.")
        predicting[renamed] = tensor
    return own, predicting


def _listed_files(index: Path) -> Iterable[str]:
    files = read_object(index, MAX_INDEX_BYTES).get("weight_map")
    names = sorted({str(name) for name in files.values()}) if isinstance(files, dict) else []
    if not 0 < len(names) <= MAX_FILES or any(Path(name).name != name or "\0" in name for name in names):
        raise CheckpointError(f"{index} does not list the files of a model: copy or download it again.")
    return names


def _tensors(paths: tuple[Path, ...]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in paths:
        found_here = read_safetensors(path, SKIPPED, has_float8=True)
        if len(found) + len(found_here) > MAX_TENSORS:
            raise CheckpointError(f"{path} is broken (the model has more than {MAX_TENSORS} tensors).")
        for name, tensor in found_here.items():
            if name in found:
                raise CheckpointError(f"{path} is broken (the tensor {name[:80]!r} is in another file too).")
            found[name] = tensor
    return found


def _with_norms_together(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Return StableLM's norms of single heads as one tensor for each layer's queries and keys, [heads, head size], as
    GGUF files have them; any that are not of one size stay as they are."""
    heads: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if found := _HEAD_NORM.fullmatch(name):
            heads.setdefault(found["layer"], {})[int(found["head"])] = tensor
    whole = dict(tensors)
    for layer, norms in heads.items():
        in_order = [norms[head] for head in sorted(norms)]
        shapes = {norm.shape for norm in in_order}
        if sorted(norms) == list(range(len(norms))) and len(shapes) == 1 and len(in_order[0].shape) == 1:
            for norm in in_order:
                del whole[norm.name]
            name, values = f"{layer}norm.weight", np.concatenate([few_floats(norm, where)[0] for norm in in_order])
            whole[name] = replace(vector(name, values), shape=(len(in_order), *shapes.pop()))
    return whole


def _named(parameters: Parameters, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by GGUF's names and in its conventions: weights [rows, inputs], norms as they are multiplied."""
    found: dict[str, Tensor] = {}
    is_normalised_after = has_norms_after(tensors)
    for stored_name, stored in tensors.items():
        name = gguf_name(stored_name, parameters.architecture, is_normalised_after=is_normalised_after)
        name = name_without_experts(name, parameters)
        if stored.parts and "_exps." not in name:
            raise only_matrices(stored_name, stored, parameters.where)
        if name in found:
            raise CheckpointError(f"{parameters.where} has a tensor {stored_name[:80]!r} twice, under different names.")
        found[name] = _as_in_gguf(parameters, replace(stored, name=name))
    return found


def _as_in_gguf(parameters: Parameters, tensor: Tensor) -> Tensor:
    convert = declared(parameters.architecture).as_in_gguf
    return with_kinds_apart(parameters, tensor if convert is None else convert(parameters, tensor))


def with_kinds_apart(parameters: Parameters, tensor: Tensor) -> Tensor:
    """Return a tensor of queries, keys and values with these one after the other; any other one as it is."""
    order_of = declared(parameters.architecture).kinds_apart
    order = order_of(parameters, tensor.shape[0]) if order_of is not None and ".attn_qkv." in tensor.name else None
    return tensor if order is None else tensor.selected(order)
