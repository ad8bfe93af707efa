"""The architectures that can be computed: from the parameters of a checkpoint to an Architecture.

Adding one means adding its function here. What a function does not know is refused by name, never ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from onward.checkpoints.architecture import Activation, Architecture, NormKind, Rope
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.convolutions import lfm2moe, with_convolutions
from onward.checkpoints.gemma4 import gemma4
from onward.checkpoints.latent import GLM, deepseek2, glm4moe
from onward.checkpoints.latent import NAME as LATENT
from onward.checkpoints.metadata_keys import WINDOW
from onward.checkpoints.mixtures import has_experts, mixture_of
from onward.checkpoints.nemotron_h import NAMES as NEMOTRON_H
from onward.checkpoints.nemotron_h import nemotron_h
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.qwen35 import NAMES as QWEN35
from onward.checkpoints.qwen35 import qwen35
from onward.checkpoints.requirements import checked, require_computable
from onward.checkpoints.rope import rope_of, with_long_positions
from onward.checkpoints.state_spaces import falcon_h1, granitehybrid
from onward.errors import CheckpointError

_EPSILONS: dict[NormKind, str] = {"rms": "attention.layer_norm_rms_epsilon", "layer": "attention.layer_norm_epsilon"}
_EXAONE4_PATTERN = 4
_GEMMA2_PATTERN = 2
_GEMMA3_PATTERN = 6
_COHERE2_PATTERN = 4
_MELLUM_PATTERN = 4
_OLMO3_PATTERN = 4
_GPT_OSS_PATTERN = 2
_EVERY_LAYER = 0
_SMOLLM3_PATTERN = 4
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_tanh", "relu_squared": "relu_squared",
}  # fmt: skip


def architecture_of(checkpoint: Checkpoint, context_length: int | None = None) -> Architecture:
    """Return the architecture of a checkpoint, for contexts of up to so many tokens.

    LongRoPE's models (arXiv 2402.13753) have two sets of positions: one for the context that they were trained for
    first, one for a longer context, which is worse within the first. Their authors change to the second one when a
    sequence becomes longer, which invalidates all keys before; here the longest context that was asked for decides, as
    in llama.cpp. None: the first one.

    Raises CheckpointError for an architecture that Onward does not compute.
    """
    parameters = checkpoint.parameters
    make = _TABLE.get(parameters.architecture)
    if make is None:
        raise CheckpointError(
            f"{parameters.where} has the architecture {parameters.architecture!r}, which Onward does not compute. It "
            f"computes {', '.join(sorted(_TABLE))}."
        )
    require_computable(parameters)
    return checked(with_long_positions(make(checkpoint), checkpoint, context_length), checkpoint)


def _llama(checkpoint: Checkpoint) -> Architecture:
    """Llama, and what is computed like it: Mixtral (modeling_mixtral.py) too, whose files say so by their experts."""
    parameters, found = checkpoint.parameters, _common(checkpoint)
    if has_experts(parameters):
        mixture = mixture_of(parameters, feed_forward=found.feed_forward, is_normalised=True)
        found = replace(found, mixture=mixture)
    return _windowed(found, parameters)


def _gemma(checkpoint: Checkpoint) -> Architecture:
    """Gemma (modeling_gemma.py): Llama with scaled embeddings and another activation."""
    found = _common(checkpoint, activation="gelu_tanh")
    return replace(found, embedding_scale=math.sqrt(found.hidden))


def _gemma2(checkpoint: Checkpoint) -> Architecture:
    """Gemma 2 (modeling_gemma2.py): a window on every second layer, norms before and after, soft caps."""
    parameters, found = checkpoint.parameters, _gemma(checkpoint)
    is_27b = found.num_layers == 46  # its scale is of hidden size per head; the others' is of the head's size
    default = 1 / math.sqrt(found.hidden / found.num_heads) if is_27b else 0.0
    found = replace(
        found,
        has_norms_after=True,
        attention_scale=parameters.real("attention.query_scale", default) or None,
        attention_cap=parameters.real("attn_logit_softcapping", 50.0) or None,
        logit_cap=parameters.real("final_logit_softcapping", 30.0) or None,
    )
    return _windowed(_with_local_base(found, checkpoint), parameters, _GEMMA2_PATTERN, 4096)


def _gemma3(checkpoint: Checkpoint) -> Architecture:
    """Gemma 3 (modeling_gemma3.py): five layers with a window, then one without; scaled embeddings; two rope bases."""
    parameters, common = checkpoint.parameters, _common(checkpoint, activation="gelu_tanh")
    assert common.rope is not None
    is_27b = common.num_layers == 62  # its scale is of hidden size per head; the others' is of the head's size
    default = 1 / math.sqrt(common.hidden / common.num_heads) if is_27b else 0.0
    found = replace(
        common,
        has_norms_after=True,
        embedding_scale=math.sqrt(common.hidden),
        local_rope=Rope(
            common.rope.size,
            parameters.real("rope.freq_base_swa", 10_000.0),
            magnitude=parameters.real("rope.scaling.attn_factor", 1.0),
        ),
        attention_scale=parameters.real("attention.query_scale", default) or None,
        logit_cap=parameters.real("final_logit_softcapping", 0.0) or None,
    )
    return _windowed(found, parameters, _GEMMA3_PATTERN)


def _exaone4(checkpoint: Checkpoint) -> Architecture:
    """EXAONE 4 (modular_exaone4.py): norms after attention and feed-forward layers, and per head; where layers have a
    window, only those have positions. llama.cpp has one on three layers of four of the 32B, whatever its file states.
    """
    found = replace(_common(checkpoint), has_norms_before=False, has_norms_after=True)
    period, default = (_EXAONE4_PATTERN, 4096) if found.num_layers == 64 else (None, 0)
    found = _windowed(found, checkpoint.parameters, period, default)
    if not found.window:
        return found
    return replace(found, ropeless_layers=frozenset(range(found.num_layers)) - found.window_layers)


def _glm4(checkpoint: Checkpoint) -> Architecture:
    """GLM-4 of 2025 (modeling_glm4.py): norms before and after, and rotation of half of each head."""
    return replace(_common(checkpoint), has_norms_after=True)


def _mistral3(checkpoint: Checkpoint) -> Architecture:
    """Ministral 3 (modular_ministral3.py): Llama, whose queries grow with each context of its first training."""
    parameters, found = checkpoint.parameters, _common(checkpoint)
    assert found.rope is not None
    length = parameters.integer("rope.scaling.original_context_length", found.context_length, minimum=1)
    rope = replace(found.rope, query_growth=parameters.real("attention.temperature_scale", 0.0), growth_length=length)
    return _windowed(replace(found, rope=rope), parameters)


def _qwen3moe(checkpoint: Checkpoint) -> Architecture:
    """Qwen 3 with experts (modeling_qwen3_moe.py). GGUF files have them in all layers, and do not state that weights
    are normalised, which those of all that are published are."""
    parameters, found = checkpoint.parameters, _common(checkpoint)
    return replace(found, mixture=mixture_of(parameters, feed_forward=0, is_normalised=True))


def _mellum(checkpoint: Checkpoint) -> Architecture:
    """Mellum 2 (modular_mellum.py): Qwen 3 with experts and a window on three layers of four, which do not scale their
    positions. Folders state a base of their own for those; GGUF's graph has one."""
    parameters, found = checkpoint.parameters, _qwen3moe(checkpoint)
    assert found.rope is not None
    local = Rope(found.rope.size, parameters.real("rope.freq_base_local", found.rope.base))
    return _windowed(replace(found, local_rope=local), parameters, _MELLUM_PATTERN)


def _olmoe(checkpoint: Checkpoint) -> Architecture:
    """OLMoE (modeling_olmoe.py): experts whose weights are not normalised, norms over all queries and keys."""
    found = _common(checkpoint)
    mixture = mixture_of(checkpoint.parameters, feed_forward=found.feed_forward, is_normalised=False)
    return replace(found, mixture=mixture)


def _qwen2moe(checkpoint: Checkpoint) -> Architecture:
    """Qwen 1.5 and 2 with experts (modeling_qwen2_moe.py), whose weights are not normalised, and one that all tokens
    use, as far as the sigmoid of a logit of its own says."""
    parameters, found = checkpoint.parameters, _common(checkpoint)
    mixture = mixture_of(parameters, feed_forward=0, is_normalised=False)
    if mixture.shared_feed_forward == 0:
        mixture = replace(mixture, shared_feed_forward=found.feed_forward)
    return _windowed(replace(found, mixture=mixture), parameters)


def _granitemoe(checkpoint: Checkpoint) -> Architecture:
    """Granite with experts (modeling_granitemoe.py, modeling_granitemoeshared.py), perhaps with one that all tokens
    use."""
    found = _granite(checkpoint)
    return replace(
        found, mixture=mixture_of(checkpoint.parameters, feed_forward=found.feed_forward, is_normalised=True)
    )


def _gpt_oss(checkpoint: Checkpoint) -> Architecture:
    """gpt-oss (modular_gpt_oss.py): sinks, a window on every second layer, experts with biases and a unit of their own,
    whose weights are normalised over the chosen ones."""
    parameters, found = checkpoint.parameters, _common(checkpoint)
    if found.activation != "silu":
        raise CheckpointError(f"{parameters.where} has the activation {found.activation!r} instead of 'silu'.")
    found = replace(
        found,
        has_sinks=True,
        activation="clamped_silu",
        mixture=mixture_of(parameters, feed_forward=found.feed_forward, is_normalised=True),
    )
    return _windowed(_with_local_base(found, checkpoint), parameters, _GPT_OSS_PATTERN)


def _phi3(checkpoint: Checkpoint) -> Architecture:
    """Phi 3 (modeling_phi3.py): a window on all layers where there is one."""
    return _windowed(_common(checkpoint), checkpoint.parameters, _EVERY_LAYER)


def _starcoder2(checkpoint: Checkpoint) -> Architecture:
    """StarCoder 2 (modeling_starcoder2.py): layer norms, biases everywhere, no gate."""
    return _windowed(_common(checkpoint, norm="layer", activation="gelu_tanh"), checkpoint.parameters)


def _granite(checkpoint: Checkpoint) -> Architecture:
    """Granite (modeling_granite.py): Llama with four scales. A GGUF file whose 'rope.scaling.finetuned' is false has no
    positions (NoPE, as in Granite 4)."""
    parameters = checkpoint.parameters
    common = _common(checkpoint, may_lack_heads=parameters.architecture == "granitehybrid")
    is_rotated = parameters.architecture == "granitemoe" or parameters.switch("rope.scaling.finetuned", True)
    return replace(
        common,
        ropeless_layers=frozenset() if is_rotated else frozenset(range(common.num_layers)),
        embedding_scale=parameters.real("embedding_scale", 1.0) or 1.0,
        residual_scale=parameters.real("residual_scale", 1.0) or 1.0,
        logit_scale=1.0 / (parameters.real("logit_scale", 1.0) or 1.0),
        attention_scale=parameters.real("attention.scale", 0.0) or None,
    )


def _smollm3(checkpoint: Checkpoint) -> Architecture:
    """SmolLM 3 (modeling_smollm3.py): Llama, of which every fourth layer has no positions."""
    found = _common(checkpoint)
    rotated = checkpoint.parameters.switches("rope.layers", found.num_layers)
    if rotated is None:
        rotated = [bool((layer + 1) % _SMOLLM3_PATTERN) for layer in range(found.num_layers)]
    return replace(found, ropeless_layers=_layers(not each for each in rotated))


def _olmo2(checkpoint: Checkpoint) -> Architecture:
    """OLMo 2 (modeling_olmo2.py): norms after attention and feed-forward layers, and over all queries and keys. OLMo 3
    (modular_olmo3.py) has the same name in GGUF files, and a window on three layers of four, which do not scale their
    positions."""
    parameters, common = checkpoint.parameters, _common(checkpoint)
    assert common.rope is not None
    local = Rope(common.rope.size, parameters.real("rope.freq_base_local", common.rope.base))
    found = replace(common, has_norms_before=False, has_norms_after=True, local_rope=local)
    return _windowed(found, parameters, _OLMO3_PATTERN)


def _stablelm(checkpoint: Checkpoint) -> Architecture:
    """StableLM (modeling_stablelm.py): layer norms, rotation of a part of each head. Where a block has one norm, both
    of its layers read it."""
    has_second = "blk.0.ffn_norm.weight" in checkpoint.tensors
    return replace(_common(checkpoint, norm="layer"), is_parallel=not has_second)


def _gpt2(checkpoint: Checkpoint) -> Architecture:
    """GPT-2 (modeling_gpt2.py): embeddings of positions, layer norms, biases, no gate."""
    return replace(_common(checkpoint, norm="layer", activation="gelu_tanh"), rope=None)


def _gptneox(checkpoint: Checkpoint) -> Architecture:
    """GPT-NeoX and Pythia (modeling_gpt_neox.py): attention and feed-forward layer in parallel."""
    found = _common(checkpoint, norm="layer", activation="gelu")
    return replace(found, is_parallel=checkpoint.parameters.switch("use_parallel_residual", True))


def _cohere2(checkpoint: Checkpoint) -> Architecture:
    """Command R7B (modeling_cohere2.py): one norm for both layers of a block; three layers of four have a window, and
    only those have positions; scaled logits."""
    parameters = checkpoint.parameters
    common = replace(
        _common(checkpoint, norm="layer"), is_parallel=True, logit_scale=parameters.real("logit_scale", 1.0) or 1.0
    )
    if parameters.has(WINDOW):
        parameters.integer(WINDOW, minimum=1)
    found = _windowed(common, parameters, _COHERE2_PATTERN)
    return replace(found, ropeless_layers=frozenset(range(found.num_layers)) - found.window_layers)


def _lfm2(checkpoint: Checkpoint) -> Architecture:
    """LFM2 (modular_lfm2.py): gated short convolutions in most layers, norms per head in the others, which may have a
    window in GGUF files."""
    parameters = checkpoint.parameters
    found = with_convolutions(_common(checkpoint, may_lack_heads=True), parameters)
    windowed = _windowed(found, parameters, _EVERY_LAYER)
    return replace(windowed, window_layers=windowed.window_layers - found.convolution_layers)


def _common(
    checkpoint: Checkpoint,
    *,
    norm: NormKind = "rms",
    activation: Activation = "silu",
    head_size: int | None = None,
    num_kv_heads: int | None = None,
    feed_forward: int | None = None,
    may_lack_heads: bool = False,
    epsilon: float | None = None,
) -> Architecture:
    """Return what all architectures state in the same way, as Llama would use it. `head_size`, `num_kv_heads`,
    `feed_forward`: of an architecture that states it in another way; `may_lack_heads`: layers may have no attention."""
    parameters = checkpoint.parameters
    hidden, layers = parameters.integer("embedding_length", minimum=1), parameters.num_layers()
    heads = parameters.same_in_layers("attention.head_count", layers)
    if head_size is None:
        head_size = parameters.head_size(hidden // heads)
    return Architecture(
        name=parameters.architecture,
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=num_kv_heads
        or parameters.same_in_layers("attention.head_count_kv", layers, heads, may_lack=may_lack_heads),
        head_size=head_size,
        feed_forward=feed_forward or parameters.same_in_layers("feed_forward_length", layers, 4 * hidden),
        context_length=parameters.integer("context_length", minimum=1),
        epsilon=parameters.real(_EPSILONS[norm]) if epsilon is None else epsilon,
        rope=rope_of(
            checkpoint,
            parameters.integer("rope.dimension_count", head_size, minimum=2),
            parameters.real("rope.freq_base", 10_000.0),
        ),
        norm=norm,
        activation=_activation(parameters, activation),
    )


def _activation(parameters: Parameters, default: Activation) -> Activation:
    stated = parameters.text("activation", default)
    found = _ACTIVATIONS.get(stated)
    if found is None:
        raise CheckpointError(f"{parameters.where} has the activation {stated[:40]!r}, which Onward does not compute.")
    return found


def _with_local_base(found: Architecture, checkpoint: Checkpoint) -> Architecture:
    """Return the architecture with another base of positions for layers with a window, if the file states one."""
    assert found.rope is not None
    base = checkpoint.parameters.real("rope.freq_base_swa", found.rope.base)
    if base == found.rope.base:
        return found
    return replace(found, local_rope=rope_of(checkpoint, found.rope.size, base))


def _windowed(found: Architecture, parameters: Parameters, period: int | None = None, default: int = 0) -> Architecture:
    """Return the architecture with the window that the parameters state, on the layers that they state, else on all but
    every `period`-th one. With neither it stays without one, which is refused if the window matters."""
    window = parameters.integer(WINDOW, default)
    layers = parameters.switches("attention.sliding_window_pattern", found.num_layers)
    if layers is None and period is not None:
        layers = [period == _EVERY_LAYER or bool((layer + 1) % period) for layer in range(found.num_layers)]
    return replace(found, window=window, window_layers=_layers(layers)) if window and layers is not None else found


def _layers(switches: Iterable[bool]) -> frozenset[int]:
    return frozenset(layer for layer, is_on in enumerate(switches) if is_on)


_TABLE: dict[str, Callable[[Checkpoint], Architecture]] = {
    "llama": _llama,
    "qwen2": _llama,
    "qwen3": _llama,
    "seed_oss": _llama,
    "internlm2": _llama,
    "qwen3moe": _qwen3moe,
    "qwen2moe": _qwen2moe,
    "granitemoe": _granitemoe,
    "granitehybrid": lambda checkpoint: granitehybrid(checkpoint.parameters, _granite(checkpoint)),
    "falcon-h1": lambda checkpoint: falcon_h1(checkpoint.parameters, _common(checkpoint)),
    **dict.fromkeys(NEMOTRON_H, lambda checkpoint: nemotron_h(checkpoint.parameters, partial(_common, checkpoint))),
    "mellum": _mellum,
    "olmoe": _olmoe,
    "gpt-oss": _gpt_oss,
    "mistral3": _mistral3,
    "glm4": _glm4,
    "exaone4": _exaone4,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma4": lambda checkpoint: gemma4(checkpoint.parameters, partial(_common, checkpoint)),
    "phi3": _phi3,
    "starcoder2": _starcoder2,
    "granite": _granite,
    "smollm3": _smollm3,
    "olmo2": _olmo2,
    "stablelm": _stablelm,
    "gpt2": _gpt2,
    "gptneox": _gptneox,
    "cohere2": _cohere2,
    LATENT: lambda checkpoint: deepseek2(checkpoint.parameters, checkpoint.tensors, partial(_common, checkpoint)),
    GLM: lambda checkpoint: glm4moe(checkpoint.parameters, _common(checkpoint)),
    **dict.fromkeys(QWEN35, lambda checkpoint: qwen35(checkpoint.parameters, _common(checkpoint))),
    "lfm2": _lfm2,
    "lfm2moe": lambda checkpoint: lfm2moe(checkpoint.parameters, _common(checkpoint, may_lack_heads=True)),
}
