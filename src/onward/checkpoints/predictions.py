"""Layers that predict one more token than the model (multi-token prediction, MTP).

    g[p] = norm(layer(W [norm(embedding[token p + 1]), norm(h[p])]))
    logits of token p + 2 = output layer(g[p])

h are the model's hidden states after its last norm. The layer is a decoder layer of the model's own kind, with
attention and its own keys and values; embedding and output layer are the model's. To draft further tokens, g takes the
place of h. As published for MiMo (modeling_mimo.py), Qwen 3 Next, Qwen 3.5 and DeepSeek-V3 (arXiv 2412.19437, section
2.2), and as in vLLM's mimo_mtp.py, qwen3_next_mtp.py, qwen3_5_mtp.py and deepseek_mtp.py. Where there are several such
layers, the first one is used.

Files of DeepSeek's models have embedding and output layer once more with such a layer, though both are the model's: if
they are that, they are left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.mixtures import joined_experts
from onward.checkpoints.requirements import require_layer
from onward.checkpoints.table import declared
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError

PART = "nextn"
"""Begins the names of the tensors that other layers do not have: "blk.36.nextn.eh_proj.weight"."""
_COPIES = {"embed_tokens": "token_embd", "shared_head_head": "output"}
"""What files may have once more with such a layer."""
_COMPARED_ROWS = 32
_MAX_ROUNDING = 0.25
"""By which numbers of two copies in other types of weights may differ, as a fraction of a row's largest one."""


def reads_hidden_first(found: Architecture) -> bool:
    """Return whether the projection reads the normalised hidden state first, and then the normalised embedding."""
    predicting = declared(found.name).predicting
    return predicting is not None and predicting.reads_hidden_first


def with_prediction(found: Architecture, checkpoint: Checkpoint) -> tuple[Architecture, Checkpoint]:
    """Return an architecture and a checkpoint in which the layer that predicts is the last one. Raises CheckpointError
    if there is none, or if its tensors are missing or have other shapes."""
    layer, where = found.num_layers, checkpoint.parameters.where
    prefix = f"blk.{layer}."
    own = {name: tensor for name, tensor in checkpoint.predictions.items() if name.startswith(prefix)}
    for part, name in _COPIES.items():
        if (copy := own.pop(f"{prefix}{PART}.{part}.weight", None)) is None:
            continue
        if not _are_alike(copy, checkpoint.tensors.get(f"{name}.weight") or checkpoint.tensor("token_embd.weight")):
            raise CheckpointError(
                f"{where} has other weights for the layer that predicts several tokens at once ({part!r}) than for the "
                "model, with which Onward does not draft: leave --draft mtp out."
            )
    if unknown := next((name for name in checkpoint.predictions if not name.startswith("blk.")), None):
        raise CheckpointError(
            f"{where} has a tensor {unknown[:80]!r}, which Onward does not compute for {found.name!r}."
        )
    if not own:
        raise CheckpointError(
            f"{where} has no layers that predict several tokens at once, which --draft mtp needs: leave it out, or "
            "pass a smaller model with the same tokenizer."
        )
    mixture = found.mixture
    if mixture is not None and layer - 1 in mixture.layers:
        mixture = replace(mixture, layers=mixture.layers | {layer})
    extended = replace(found, num_layers=layer + 1, mixture=mixture)
    whole = replace(checkpoint, tensors={**checkpoint.tensors, **joined_experts(own, where)})
    hidden = found.hidden
    norms = {f"{PART}.{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head_norm")}
    require_layer(extended, whole, layer, {f"{PART}.eh_proj.weight": (hidden, 2 * hidden), **norms})
    return extended, whole


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Return whether some rows of two matrices are the same, as far as their types of weights let them be."""
    if one.shape != other.shape or len(one.shape) != 2:
        return False
    for row in range(0, one.num_rows, -(-one.num_rows // _COMPARED_ROWS)):
        first, second = (each.floats(row, row + 1) for each in (one, other))
        if not np.abs(first - second).max() <= _MAX_ROUNDING * np.abs(first).max():
            return False
    return True
