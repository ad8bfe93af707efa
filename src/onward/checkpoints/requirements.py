"""What keeps a checkpoint from being computed: parameters and tensors that nothing would use, and wrong sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from onward.checkpoints import latent
from onward.checkpoints.architecture import XIELU, Architecture, DeltaNet, Mixture, StateSpace
from onward.checkpoints.arrange import HEAD_NORMS
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.metadata_keys import REFUSED, SAME_AS
from onward.checkpoints.parameters import MAX_SCALE, WINDOW, Parameters
from onward.checkpoints.rope_scaling import LONG_FACTORS, MAX_HEAD_SIZE, ROPE_FACTORS, SHORT_FACTORS
from onward.checkpoints.state_spaces import STATE_NORM
from onward.checkpoints.table import declared
from onward.checkpoints.tensor import split_name
from onward.errors import CheckpointError

Shape = tuple[int, ...]
_ONE_GROUP = ("expert_group_count", "expert_group_used_count")
"""Of which one is all experts together."""
KEYS_ARE_VALUES = "attention.keys_are_values"
_MAX_GROUP = 512
"""Heads that attend to the same keys: four times those of any model. Compiling takes a time that grows with its square.
"""


def require_computable(parameters: Parameters) -> None:
    """Raise CheckpointError for parameters that change what is computed, except those that the architecture uses."""
    used = declared(parameters.architecture).keys
    for name, meaning in REFUSED.items():
        if name not in used and parameters.has(name) and _is_in_use(name, parameters.own(name)):
            raise CheckpointError(f"{parameters.where} uses {meaning} ({name!r}), which Onward does not compute.")
    for name, same in SAME_AS.items():
        if name in used:
            continue
        stated, usual = parameters.own(name), parameters.own(same)
        if parameters.has(name) and parameters.has(same) and not np.array_equal(np.asarray(stated), np.asarray(usual)):
            raise CheckpointError(
                f"{parameters.where} has layers of different sizes ({name!r}), which Onward does not compute."
            )
    if not parameters.switch("attention.causal", True):
        raise CheckpointError(f"{parameters.where} is a model of embeddings: it cannot continue a text.")


def _is_in_use(name: str, value: MetadataValue | None) -> bool:
    if isinstance(value, np.ndarray):
        least = 0 if name == "deepstack_mapping" else 1
        return bool((value >= least).any())
    return bool(value) and not (name in _ONE_GROUP and value == 1)


def checked(found: Architecture, checkpoint: Checkpoint) -> Architecture:
    """Return the architecture. Raises CheckpointError for sizes that contradict each other or the tensors."""
    where = checkpoint.parameters.where
    for layer in range(found.num_layers):
        heads, rope = found.heads_of(layer), found.rope_of(layer) or found.rope
        rotated = rope.size if rope else 0
        if not heads.num_kv_heads or heads.num_heads % heads.num_kv_heads or rotated > heads.head_size or rotated % 2:
            raise CheckpointError(
                f"{where} states sizes of heads that no model can have: {heads.num_heads} heads "
                f"('attention.head_count'), {heads.num_kv_heads} of keys and values ('attention.head_count_kv'), of "
                f"{heads.head_size} dimensions, of which {rotated} are rotated ('rope.dimension_count')."
            )
        if max(heads.head_size, heads.value_size) > MAX_HEAD_SIZE or heads.num_heads // heads.num_kv_heads > _MAX_GROUP:
            raise CheckpointError(
                f"{where} states larger heads than any model has, or more of them for each head of keys: at most "
                f"{MAX_HEAD_SIZE} dimensions, and {_MAX_GROUP} heads, are computed."
            )
        if rope is not None and rope.base <= 0:
            raise CheckpointError(f"{where} states a base of positions ('rope.freq_base') that no model can have.")
    if found.epsilon < 0:
        raise CheckpointError(f"{where} states {found.epsilon:g} as the epsilon of its norms, which no model can have.")
    scales = [found.attention_scale or 0.0, found.embedding_scale, found.residual_scale, found.logit_scale]
    scales += [factor for parts in found.multipliers.values() for _, factor in parts]
    scales += [growth.amount for layer in range(found.num_layers) if (growth := found.growth_of(layer)) is not None]
    if not all(abs(scale) <= MAX_SCALE for scale in scales):
        raise CheckpointError(
            f"{where} multiplies scores, queries, embeddings, logits or what layers add by more than {MAX_SCALE:g}, "
            "which no model can have."
        )
    window = checkpoint.parameters.integer(WINDOW, 0)
    if 0 < window < found.context_length and window != found.window:
        raise CheckpointError(
            f"{where} attends to {window} tokens at a time ({WINDOW!r}), which Onward does not compute "
            f"for {found.name!r}."
        )
    _require_tensors(found, checkpoint)
    for rope in (found.rope, found.local_rope):
        if rope is not None and rope.factors is not None and not (rope.factors > 0).all():
            raise CheckpointError(f"{where} divides frequencies of positions by numbers that no model can have.")
    return found


def _require_tensors(found: Architecture, checkpoint: Checkpoint) -> None:
    """Raise CheckpointError for a tensor that is missing, has another shape, or would be left out: the result would be
    another model's."""
    where = checkpoint.parameters.where
    for name, tensor in checkpoint.tensors.items():
        if ".attn_qkv." in name:
            raise CheckpointError(
                f"{where}: {name!r} has {tensor.shape[0]} rows instead of those of all queries, keys and values."
            )
    required, optional = _required(found, checkpoint), _optional(found, checkpoint)
    if declared(found.name).head_norms in ("perhaps", "of each head"):  # in all layers, or in none
        norms = {name: shape for name, shape in optional.items() if split_name(name)[1] in HEAD_NORMS}
        required |= {} if norms.keys().isdisjoint(checkpoint.tensors) else norms
    for name, shape in required.items():
        if name == "output.weight" and name not in checkpoint.tensors:
            raise CheckpointError(f"{where} has no output layer ('output.weight'): it is not a complete model.")
        _require_shape(checkpoint.tensor(name).shape, shape, name, where)
    for name, tensor in checkpoint.tensors.items():
        if name in required:
            continue
        matrix, _, kind = name.rpartition(".")
        if name not in optional or (kind == "bias" and f"{matrix}.weight" not in checkpoint.tensors):
            raise CheckpointError(
                f"{where} has a tensor {name[:80]!r}, which Onward does not compute for {found.name!r}."
            )
        _require_shape(tensor.shape, optional[name], name, where)


def require_layer(found: Architecture, checkpoint: Checkpoint, layer: int, own: Mapping[str, Shape]) -> None:
    """Raise CheckpointError for a tensor of a layer that is missing, has another shape, or would be left out. `own`:
    what it must have in addition to those of the architecture, by names without the layer's."""
    prefix, parameters = f"blk.{layer}.", checkpoint.parameters
    required = {**dict(_block(found, layer, parameters)), **own}
    matrices = _matrices(found, layer, parameters)
    optional = {f"{name}.bias": shape[:1] for name, shape in matrices.items() if _may_have_bias(parameters, name)}
    optional |= dict(_optional_in_block(found, layer, parameters))
    for name, shape in required.items():
        _require_shape(checkpoint.tensor(f"{prefix}{name}").shape, shape, f"{prefix}{name}", parameters.where)
    for name, tensor in checkpoint.tensors.items():
        part = name.removeprefix(prefix)
        if part == name or part in required:
            continue
        if part not in optional:
            raise CheckpointError(
                f"{parameters.where} has a tensor {name[:80]!r}, which Onward does not compute for {found.name!r}."
            )
        _require_shape(tensor.shape, optional[part], name, parameters.where)


def _require_shape(shape: Shape, needed: Shape, name: str, where: str) -> None:
    leading = max(0, len(shape) - len(needed))
    if shape[leading:] == needed and set(shape[:leading]) <= {1}:
        return
    if name in ("token_embd.weight", "output.weight") and shape[-1:] == needed[-1:]:
        raise CheckpointError(
            f"{where} has {needed[0]} tokens, but {name!r} has {shape[0]} rows: it is not a complete model, or tokens "
            "were added without resizing it."
        )
    raise CheckpointError(f"{where}: {name!r} has the shape {list(shape)} instead of {list(needed)}.")


def _required(found: Architecture, checkpoint: Checkpoint) -> dict[str, Shape]:
    own, hidden, embeddings = declared(found.name), found.hidden, _embeddings(found, checkpoint)
    shapes: dict[str, Shape] = {"token_embd.weight": embeddings}
    shapes |= {f"{name}.weight": shape for name, shape in found.embedding_matrices.items()}
    if checkpoint.is_tied is False or (checkpoint.is_tied is None and own.is_untied):
        shapes["output.weight"] = embeddings
    shapes |= {} if found.rope else {"position_embd.weight": (found.context_length, hidden)}
    if found.has_norm_weights and not found.has_norms_of_sums:
        kinds = ("weight", "bias") if own.has_norm_biases else ("weight",)
        shapes |= dict.fromkeys((f"output_norm.{kind}" for kind in kinds), (hidden,))
    if own.has_unrotated_parts and found.rope is not None and len(found.window_layers) < found.num_layers:
        shapes[ROPE_FACTORS] = (found.rope.size // 2,)
    if size := found.layer_input:
        rows = checkpoint.parameters.integer("vocab_size_per_layer_input", embeddings[0])
        shapes["per_layer_token_embd.weight"] = rows, found.num_layers * size
        shapes["per_layer_model_proj.weight"] = found.num_layers * size, hidden
        shapes["per_layer_proj_norm.weight"] = (size,)
    for index in range(found.altup.count - 1 if found.altup else 0):
        shapes |= dict.fromkeys((f"altup_proj.{index}.weight", f"altup_unembd_proj.{index}.weight"), (hidden, hidden))
    for layer in range(found.num_layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in _block(found, layer, checkpoint.parameters)}
    return shapes


def _embeddings(found: Architecture, checkpoint: Checkpoint) -> tuple[int, int]:
    """Return the shape of embeddings, whose rows are as many as they have where nothing is stated."""
    rows = checkpoint.num_tokens
    rows = checkpoint.tensor("token_embd.weight").shape[0] if rows is None else rows
    return rows, found.embedding_size or found.hidden


def _block(found: Architecture, layer: int, parameters: Parameters) -> Iterator[tuple[str, Shape]]:
    """Yield name and shape of each tensor that a layer has to have."""
    own = declared(found.name)
    matrices = _matrices(found, layer, parameters)
    for name, shape in matrices.items():
        yield f"{name}.weight", shape
        if own.biases in ("always", "of feed-forward layers") and _may_have_bias(parameters, name):
            yield f"{name}.bias", shape[:-1]
    if found.has_sinks:
        yield "attn_sinks.weight", (found.num_heads,)
    if found.altup is not None:
        yield "altup_correct_scale.weight", (found.hidden,)
    if found.latent is not None:
        yield from ((f"{name}.weight", shape) for name, shape in latent.norms(found).items())
    for name in _norms(found, layer):
        yield f"{name}.weight", (found.hidden,)
        if own.has_norm_biases:
            yield f"{name}.bias", (found.hidden,)
    if found.mixture is not None and found.mixture.has_bias and layer in found.mixture.layers:
        yield "exp_probs_b.bias", (found.mixture.count,)
    if layer in found.convolution_layers:
        yield "shortconv.conv.weight", (found.hidden, found.convolution_length)
        return
    if found.delta is not None and layer in found.delta.layers:
        yield from _of_delta(found.delta)
        return
    if (space := found.state_space_of(layer)) is not None:
        yield "ssm_conv1d.weight", (space.width, space.length)
        if parameters.switch("ssm.convolution_bias", False):
            yield "ssm_conv1d.bias", (space.width,)
        yield "ssm_dt.bias", (space.num_heads,)
        yield "ssm_a", (space.num_heads, 1)
        yield "ssm_d", (space.num_heads, 1)
        if not own.may_lack_state_norms or parameters.switch(STATE_NORM, False):
            yield "ssm_norm.weight", _state_norm(space)
        return
    if _has_both(found, layer):
        yield "ffn_gate_inp.scale", (found.hidden,)
    for name, heads in (("attn_q_norm", found.num_heads), ("attn_k_norm", found.num_kv_heads)):
        if own.head_norms == "always" and (name == "attn_q_norm" or found.keys_of(layer) == layer):
            yield f"{name}.weight", (found.heads_of(layer).head_size,)
        if own.head_norms == "of each head" and parameters.switch("attention.head_norms", False):
            yield f"{name}.weight", (heads, found.head_size)
        if own.head_norms == "perhaps" and parameters.switch("attention.head_norms", False):
            yield f"{name}.weight", (found.head_size,)
        if own.head_norms == "of all heads":
            yield f"{name}.weight", (heads * found.head_size,)


def _state_norm(space: StateSpace) -> Shape:
    parts = space.norm_groups
    return (space.inner,) if parts == 1 else (parts, space.inner // parts)


def _of_delta(delta: DeltaNet) -> Iterator[tuple[str, Shape]]:
    """Yield what a layer with a delta rule has in addition to its matrices."""
    yield "ssm_conv1d.weight", (delta.width, delta.length)
    yield "ssm_norm.weight", (delta.value_size,)
    yield "ssm_a", (delta.num_heads,)
    yield "ssm_dt.bias", (delta.num_heads,)


def _matrices(found: Architecture, layer: int, parameters: Parameters) -> dict[str, Shape]:
    own, heads, hidden, inner = declared(found.name), found.heads_of(layer), found.hidden, found.feed_forward_of(layer)
    queries = heads.num_heads * heads.head_size
    matrices: dict[str, Shape] = {"attn_q": (queries, hidden), "attn_output": (hidden, queries)}
    if found.latent is not None:
        matrices = {**latent.matrices(found), "attn_output": (hidden, heads.num_heads * heads.value_size)}
    elif layer in found.mixerless_layers:
        matrices = {}
    elif found.keys_of(layer) == layer:
        matrices |= _keys_and_values(found, layer)
        if _may_lack_values(found, layer, parameters):
            del matrices["attn_v"]
    if layer in found.convolution_layers:
        matrices = {"shortconv.in_proj": (3 * hidden, hidden), "shortconv.out_proj": (hidden, hidden)}
    if found.has_gated_attention:
        matrices["attn_q_gate"] = queries, hidden
    if (delta := found.delta) is not None and layer in delta.layers:
        matrices = {
            "ssm_qkv": (delta.width, hidden), "ssm_gate": (delta.values, hidden),
            "ssm_alpha": (delta.num_heads, hidden), "ssm_beta": (delta.num_heads, hidden),
            "ssm_out": (hidden, delta.values),
        }  # fmt: skip
    if (space := found.state_space_of(layer)) is not None:
        rows = space.inner + space.width + space.num_heads
        attention = matrices if space.is_parallel_to_attention else {}
        matrices = {**attention, "ssm_in": (rows, hidden), "ssm_out": (hidden, space.inner)}
    if found.layer_input:
        matrices |= {"inp_gate": (found.layer_input, hidden), "proj": (hidden, found.layer_input)}
    if (altup := found.altup) is not None:
        count, rank = altup.count, altup.laurel_rank
        matrices |= {
            "altup_router": (count, hidden), "altup_predict_coef": (count * count, count),
            "altup_correct_coef": (count, count), "laurel_l": (rank, hidden), "laurel_r": (hidden, rank),
        }  # fmt: skip
    if found.mixture is not None and layer in found.mixture.layers:
        gate: dict[str, Shape] = {"ffn_gate_inp_shexp": (hidden,)} if own.has_gated_share else {}
        matrices |= _experts(found.mixture, hidden) | gate
        if not found.mixture.is_beside_dense:
            return matrices
    if not found.is_feeding(layer):
        return matrices
    matrices |= {"ffn_up": (inner, hidden), "ffn_down": (hidden, inner)}
    return {**matrices, "ffn_gate": (inner, hidden)} if own.is_gated else matrices


def _keys_and_values(found: Architecture, layer: int) -> dict[str, Shape]:
    heads = found.heads_of(layer)
    return dict.fromkeys(("attn_k", "attn_v"), (heads.num_kv_heads * heads.head_size, found.hidden))


def _may_lack_values(found: Architecture, layer: int, parameters: Parameters) -> bool:
    """Return whether values may be the keys: of a GGUF file all may, of a folder those that it says so of."""
    if not declared(found.name).may_lack_values:
        return False
    is_stated = parameters.has(KEYS_ARE_VALUES)
    return not is_stated or (parameters.switch(KEYS_ARE_VALUES, True) and layer not in found.window_layers)


def _has_both(found: Architecture, layer: int) -> bool:
    """Return whether a layer has experts and an ordinary feed-forward layer."""
    return found.mixture is not None and found.mixture.is_beside_dense and layer in found.mixture.layers


def _experts(mixture: Mixture, hidden: int) -> dict[str, Shape]:
    count, inner, shared = mixture.count, mixture.feed_forward, mixture.shared_feed_forward
    matrices: dict[str, Shape] = {"ffn_gate_inp": (count, hidden), "ffn_down_exps": (count, hidden, inner)}
    matrices |= {f"ffn_{part}_exps": (count, inner, hidden) for part in mixture.inputs}
    if shared:
        matrices["ffn_down_shexp"] = hidden, shared
        matrices |= {f"ffn_{part}_shexp": (shared, hidden) for part in mixture.inputs}
    return matrices


def _may_have_bias(parameters: Parameters, name: str) -> bool:
    """Return whether a matrix may have a bias, as the configuration of a folder says; of a GGUF file: it may, unless it
    is a convolution's, or makes a state, or attention is latent."""
    without = {"never": "", "of feed-forward layers": "attn"}.get(declared(parameters.architecture).biases, "ssm")
    if name.startswith(("shortconv", "ssm", without)):
        return False
    found = parameters.switch("attention.bias" if name.startswith("attn") else "feed_forward.bias", True)
    return parameters.switch("attention.output_bias", found) if name == "attn_output" else found


def _norms(found: Architecture, layer: int) -> list[str]:
    if not found.has_norm_weights:
        return []
    has_one = found.is_parallel and not found.has_two_norms
    has_one |= layer in found.mixerless_layers or not found.is_feeding(layer)
    before = ["attn_norm"] if has_one else ["attn_norm", "ffn_norm"]
    after = ["post_attention_norm", "post_ffw_norm"] if found.has_norms_after or found.has_norms_of_sums else []
    own = ["post_norm"] if found.layer_input else []
    own += ["altup_router_norm", "laurel_post_norm"] if found.altup else []
    if _has_both(found, layer):
        own += ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"]
    return (before if found.has_norms_before else []) + after + own


def _optional(found: Architecture, checkpoint: Checkpoint) -> dict[str, Shape]:
    """Return the tensors that a checkpoint may have in addition to those that it must have."""
    own, parameters = declared(found.name), checkpoint.parameters
    hidden, embeddings = found.hidden, _embeddings(found, checkpoint)
    shapes: dict[str, Shape] = {"output.weight": embeddings, "output.bias": embeddings[:1]}
    if found.rope is not None:
        shapes |= dict.fromkeys((ROPE_FACTORS, SHORT_FACTORS, LONG_FACTORS), (found.rope.size // 2,))
    if found.norm == "layer":
        shapes["output_norm.bias"] = (hidden,)
    for layer in range(found.num_layers):
        prefix = f"blk.{layer}."
        for name, shape in _matrices(found, layer, parameters).items():
            if "_exps" not in name and "_inp" not in name and "_shexp" not in name and _may_have_bias(parameters, name):
                shapes[f"blk.{layer}.{name}.bias"] = shape[:1]
        if found.norm == "layer":
            shapes |= {f"blk.{layer}.{name}.bias": (hidden,) for name in _norms(found, layer)}
        shapes |= {f"{prefix}{name}": shape for name, shape in _optional_in_block(found, layer, parameters)}
        if own.head_norms == "of each head" and parameters.switch("attention.head_norms", True):
            shapes[f"blk.{layer}.attn_q_norm.weight"] = found.num_heads, found.head_size
            shapes[f"blk.{layer}.attn_k_norm.weight"] = found.num_kv_heads, found.head_size
    return shapes


def _optional_in_block(found: Architecture, layer: int, parameters: Parameters) -> Iterator[tuple[str, Shape]]:
    """Yield what a layer may have: keys and values where it does not use them, values where they are not the keys, and
    scales."""
    own, space = declared(found.name), found.state_space_of(layer)
    if found.xielu:
        yield from ((f"ffn_act.{part}", (1,)) for part in XIELU if parameters.whole(f"xielu.{part}") is None)
    if space is not None and not parameters.has("ssm.convolution_bias"):
        yield "ssm_conv1d.bias", (space.width,)
    if space is not None and own.may_lack_state_norms and not parameters.has(STATE_NORM):
        yield "ssm_norm.weight", _state_norm(space)
    if own.head_norms == "perhaps" and not parameters.has("attention.head_norms"):
        yield from ((f"attn_{part}_norm.weight", (found.head_size,)) for part in "qk")
    is_keyless = found.keys_of(layer) != layer
    if is_keyless:
        yield "attn_k_norm.weight", (found.heads_of(layer).head_size,)
    if not is_keyless and not own.may_lack_values:
        return
    for name, shape in _keys_and_values(found, layer).items():
        is_optional = name == "attn_v" and not parameters.has(KEYS_ARE_VALUES)
        if is_keyless or is_optional:
            yield f"{name}.weight", shape
        if _may_have_bias(parameters, name) and (is_keyless or is_optional):
            yield f"{name}.bias", shape[:1]
    if not own.may_lack_values:
        return
    yield "layer_output_scale.weight", (1,)
    if found.mixture is not None and layer in found.mixture.layers:
        yield "ffn_down_exps.scale", (found.mixture.count,)
