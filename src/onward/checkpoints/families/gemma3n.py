"""Gemma 3n (modular_gemma3n.py), its part for texts: layers that look something up for their token and share keys, as
in Gemma 4; several hidden states, of which a layer computes one (AltUp); a product of two small matrices beside
attention (LAuReL); and gates in the first layers of which only the largest ones count."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal, localcontext
from statistics import NormalDist
from typing import Any

from onward.checkpoints.architecture import AltUp, Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families.common import RMS, WINDOW_BASE, WINDOW_LAYERS, WINDOWS, common, require_stated
from onward.checkpoints.families.gemma4 import LOGIT_CAP, keyless, layer_input, local_layers, with_local_layers
from onward.checkpoints.parameters import Parameters, is_layer_count
from onward.checkpoints.rope_scaling import DECIMALS, PI
from onward.checkpoints.tensor import Tensor
from onward.errors import CheckpointError

_PERIOD = 5
"""Of files that state no kinds of layers: the last one of so many has no window."""
_WITH_KEYS, _SPARSE, _INPUT, _COUNT = 20, 10, 256, 4
"""llama.cpp's, of all files: how many layers have keys, how many have sparse gates, the numbers that a layer looks up,
and the hidden states."""
_SHARE = 0.95
"""Of gates that are zero."""
_LEAST_SHARE = 1e-9
"""Of gates that are zero or of those that are not, where some are: the series of smaller ones has no end."""
_MAX_STATES = 16
_SCALES, _SHARES = "activation_sparsity_scale", "activation_sparsity"
"""Standard deviations, of GGUF files, and shares of gates that are zero, of folders, by layer."""
_PROJECTIONS = ("altup_proj", "altup_unembd_proj")


def _gemma3n(checkpoint: Checkpoint) -> Architecture:
    """Return the architecture. Raises CheckpointError."""
    parameters, count = checkpoint.parameters, checkpoint.parameters.num_layers()
    widths = parameters.in_layers("feed_forward_length", count)
    found = common(checkpoint, activation="gelu_tanh", feed_forward=max(widths))
    assert found.rope is not None
    local = parameters.switches(WINDOW_LAYERS, count) or [bool((layer + 1) % _PERIOD) for layer in range(count)]
    inputs = layer_input(parameters, _INPUT)
    if not inputs:
        raise CheckpointError(
            f"{parameters.where} has no embeddings for each layer ('embedding_length_per_layer_input'), without which "
            "Onward does not compute it."
        )
    return replace(
        with_local_layers(found, parameters, local, found.rope.size),
        num_keyless_layers=keyless(parameters, local, max(0, count - _WITH_KEYS)),
        layer_feed_forward=tuple(widths),
        layer_input=inputs,
        gate_cutoffs=_cutoffs(parameters, widths),
        altup=_altup(checkpoint),
    )


def _altup(checkpoint: Checkpoint) -> AltUp:
    """Return the sizes of what other architectures do not have. Raises CheckpointError."""
    parameters = checkpoint.parameters
    count, active = parameters.integer("altup.num_inputs", _COUNT), parameters.integer("altup.active_idx", 0)
    if not 2 <= count <= _MAX_STATES or active:
        raise CheckpointError(
            f"{parameters.where} has {count} hidden states ('altup.num_inputs'), of which layers compute number "
            f"{active} ('altup.active_idx'): Onward computes 2 to {_MAX_STATES}, and the first one."
        )
    first = checkpoint.tensor("blk.0.laurel_l.weight")
    return AltUp(count, parameters.integer("laurel_rank", first.shape[0], minimum=1))


def _cutoffs(parameters: Parameters, widths: list[int]) -> tuple[float | None, ...]:
    """Return by how many standard deviations gates of each layer have to exceed their mean. Raises CheckpointError."""
    count = len(widths)
    shares = parameters.list_of(float, f"{parameters.architecture}.{_SHARES}", count)
    if shares is not None:
        return tuple(normal_quantile(share) if share > 0 else None for share in shares)
    scales = parameters.list_of(float, f"{parameters.architecture}.{_SCALES}", count)
    if scales is None:
        scales = [normal_quantile(_SHARE) if layer < _SPARSE else -math.inf for layer in range(count)]
    found: list[float | None] = []
    for scale, width in zip(scales, widths, strict=True):
        if not scale < 100 or (scale < -100 and math.isfinite(scale)):
            raise CheckpointError(f"{parameters.where} states {scale} in {_SCALES!r}, which no model can have.")
        # llama.cpp's standard deviation is that of a sample, those of transformers and of the authors are the row's own
        sample = math.sqrt(width / (width - 1)) if width > 1 else 1.0
        found.append(scale * sample if math.isfinite(scale) else None)
    return tuple(found)


def normal_quantile(share: float) -> float:
    """Return what this share of the standard normal distribution is below, 0 < share < 1, correctly rounded: the
    library's number, which may differ in its last bits between machines, improved by Newton's rule."""
    x = Decimal(NormalDist().inv_cdf(share))
    with localcontext(DECIMALS):
        for _ in range(2):
            term = total = x
            for n in range(1, 400):
                term *= -x * x / (2 * n)
                total += term / (2 * n + 1)
            below = Decimal("0.5") + total / (2 * PI).sqrt()
            x -= (below - Decimal(share)) * (2 * PI).sqrt() * (x * x / 2).exp()
    return float(x)


def _sizes(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, Any]:
    """Return what a configuration states of layers, by GGUF's names. Raises CheckpointError."""
    count, inner = stated["num_hidden_layers"], stated["intermediate_size"]
    if not is_layer_count(count):
        return {}
    return {
        "feed_forward_length": inner,
        "attention.shared_kv_layers": stated["num_kv_shared_layers"],
        WINDOW_LAYERS: local_layers(stated.get("layer_types"), count, _PERIOD, where),
        "embedding_length_per_layer_input": stated["hidden_size_per_layer_input"],
        "vocab_size_per_layer_input": stated["vocab_size_per_layer_input"],
        "altup.num_inputs": stated["altup_num_inputs"],
        "laurel_rank": stated["laurel_rank"],
        _SHARES: _shares(stated.get("activation_sparsity_pattern"), count, where),
    }


def _shares(stated: Any, count: int, where: str) -> list[float]:
    if stated is None:
        sparse = _SPARSE if count > _SPARSE else 0
        return [_SHARE] * sparse + [0.0] * (count - sparse)
    are_shares = isinstance(stated, list) and all(
        type(each) in (int, float) and (each == 0 or _LEAST_SHARE <= each <= 1 - _LEAST_SHARE) for each in stated
    )
    if not are_shares or len(stated) != count:
        raise CheckpointError(
            f"{where} states {str(stated)[:40]!r} as 'activation_sparsity_pattern', which needs a share for each of "
            f"{count} layers."
        )
    return [float(each) for each in stated]


def _statements(stated: Mapping[str, Any], _: Mapping[str, MetadataValue], where: str) -> dict[str, MetadataValue]:
    """Raise CheckpointError for what is not computed. Returns nothing in addition to the sizes."""
    require_stated(stated, {"altup_active_idx": (0,), "altup_correct_scale": (True,)}, where)
    return {}


def _apart(_: Parameters, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with the matrices of each hidden state apart, which GGUF files have in one."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        whole = name.removesuffix(".weight")
        if whole not in _PROJECTIONS or whole == name or len(tensor.shape) not in (2, 3):
            found[name] = tensor
            continue
        stack = tensor if len(tensor.shape) == 3 else replace(tensor, shape=(1, *tensor.shape))
        for index in range(min(stack.shape[0], _MAX_STATES)):
            found[f"{whole}.{index}.weight"] = replace(stack.part(index), name=f"{whole}.{index}.weight")
    return found


ARCHITECTURES: dict[str, Declaration] = {
    "gemma3n": Declaration(
        decoder=_gemma3n,
        keys=frozenset({
            RMS, *WINDOWS, WINDOW_BASE, "final_logit_softcapping", "attention.shared_kv_layers",
            "embedding_length_per_layer_input", "altup.num_inputs", "altup.active_idx", _SCALES,
        }),
        head_norms="always",
        names={
            **{
                f"{stored}.{index}": f"{name}.{index}"
                for stored, name in zip(("altup_projections", "altup_unembed_projections"), _PROJECTIONS, strict=True)
                for index in range(_MAX_STATES - 1)
            },
            "altup.correct_output_scale": "altup_correct_scale.weight",
            "altup.correction_coefs": "altup_correct_coef",
            "altup.prediction_coefs": "altup_predict_coef",
            "altup.modality_router": "altup_router",
            "altup.router_norm": "altup_router_norm",
            "laurel.linear_left": "laurel_l",
            "laurel.linear_right": "laurel_r",
            "laurel.post_laurel_norm": "laurel_post_norm",
        },
        apart=_apart,
        model_types={
            "gemma3n_text": ModelType(
                defaults={
                    "hidden_size": 2048, "intermediate_size": 16_384, "num_hidden_layers": 35,
                    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
                    "max_position_embeddings": 32_768, "hidden_activation": "gelu_pytorch_tanh",
                    "sliding_window": 512, "final_logit_softcapping": LOGIT_CAP, "rope_theta": 1e6,
                    "rope_local_base_freq": 1e4, "num_kv_shared_layers": 15, "laurel_rank": 64,
                    "hidden_size_per_layer_input": _INPUT, "vocab_size_per_layer_input": 262_144,
                    "altup_num_inputs": _COUNT, "altup_active_idx": 0, "altup_correct_scale": True,
                },
                attention_bias="attention_bias",
                is_tied=True,
                with_images="gemma3n",
                sizes=_sizes,
                statements=_statements,
            ),
        },
    ),
}  # fmt: skip
