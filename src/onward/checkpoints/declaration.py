"""The record of an architecture: what its files state, which tensors they have, and how a decoder follows from it.

Each stands in a module of `checkpoints/families`, by GGUF's name (`general.architecture`). What a record does not
declare is as in Llama.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tensor import Tensor

Biases = Literal["never", "perhaps", "always", "of feed-forward layers"]
HeadNorms = Literal["never", "always", "perhaps", "of each head", "of all heads"]
Experts = Literal["none", "usual", "own"]
Statements = Callable[[Mapping[str, Any], Mapping[str, MetadataValue], str], Mapping[str, MetadataValue]]
"""What config.json states in a way of its own, by GGUF's names without the architecture's: from what it states, what of
this others state in the same way, and the file's name in messages. Raises CheckpointError for what is not computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelType:
    """A `model_type` of config.json."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of its configuration class, where they differ from those of most."""
    attention_bias: str | bool = False
    """Whether queries, keys and values have biases: always, never, or as this key says."""
    output_bias: str | bool | None = None
    """The same of attention's output; None: as queries, keys and values."""
    feed_forward_bias: str | bool = False
    is_tied: bool = False
    """Whether the embeddings are the output layer, too, unless the file says otherwise."""
    tied_by: str = "tie_word_embeddings"
    experts: Experts = "none"
    """How experts are stated: by the names that most use, or by names that `statements` reads. With "none" such names
    are refused."""
    with_images: str = ""
    """The `model_type` of models that read images, too, and have this one as their part for texts."""
    may_have_head_norms: bool = False
    """Whether `qk_layernorm` may be on."""
    cuts_by: str = ""
    """The rule (`pretokenizers`) by which a text is cut where the tokenizer is vocab.json and merges.txt, which do not
    say it. Empty: models of this type follow several rules."""
    is_composed: bool = False
    """Whether such a tokenizer composes characters (NFC)."""
    sizes: Statements | None = None
    """Sizes that positions and windows depend on."""
    statements: Statements | None = None
    """All else. "general.architecture" is GGUF's name where that depends on what is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicting:
    """Layers that predict several tokens at once (`checkpoints/predictions`)."""

    names: re.Pattern[str]
    """Of their tensors in folders, with the groups `layer` and `rest`."""
    are_numbered_on: bool = False
    """Whether folders number them after the other layers, and GGUF files count them among those."""
    are_in_gguf: bool = True
    reads_hidden_first: bool = False
    """Whether the projection reads the normalised hidden state before the normalised embedding."""


NUMBERED_ON = Predicting(names=re.compile(r"model\.layers\.(?P<layer>\d{1,3})\.(?P<rest>[\w.]+)"), are_numbered_on=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """An architecture."""

    decoder: Callable[[Checkpoint], Architecture]
    """Raises CheckpointError for what is not computed."""
    keys: frozenset[str]
    """Of GGUF's metadata, without the architecture's name: those that are used, besides `metadata_keys.USED`."""
    model_types: Mapping[str, ModelType] = field(default_factory=dict)

    # which tensors there are
    is_gated: bool = True
    """Whether feed-forward layers multiply two products."""
    biases: Biases = "perhaps"
    """Which matrices have biases; a folder's configuration says it where they may have some."""
    has_norm_biases: bool = False
    head_norms: HeadNorms = "never"
    """Whether queries and keys are normalised: per head, per head with weights of its own, which are there or not, or
    over all heads."""
    has_gated_share: bool = False
    """Whether the expert that all tokens use has a gate."""
    is_untied: bool = False
    """Whether a GGUF file needs to have an output layer of its own, as llama.cpp requires."""
    may_lack_values: bool = False
    """Whether layers may have no matrix for values, which then are the keys before their norm."""
    may_lack_state_norms: bool = False
    """Whether what state spaces return may not be normalised, which a folder states."""
    has_unrotated_parts: bool = False
    """Whether factors of positions say which dimensions rotate: a file without them is not complete."""

    # how they are named and arranged
    names: Mapping[str, str] = field(default_factory=dict)
    """GGUF's names of tensors, without that of their layer, by those in folders, with or without "weight" and the like
    at the end: where they are not those of most, or mean something else there."""
    norm_name: tuple[str, str] | None = None
    """What a norm is called in GGUF files of this architecture, and in those of most."""
    has_pairs_in_gguf: bool = False
    """Whether GGUF files have the two dimensions of a rotated pair side by side."""
    has_pairs_in_folders: bool = False
    has_joined_gates: bool = False
    """Whether `ffn_up` contains the gate, too."""
    kinds_apart: Callable[[Parameters, int], NDArray[np.int64] | None] | None = None
    """Returns, of so many rows that folders have in one tensor, the order with queries, keys and values one after the
    other; None for another number than there can be."""
    may_share_alone: bool = False
    """Whether a folder without experts calls its feed-forward layer an expert that all tokens use."""
    apart: Callable[[Parameters, Mapping[str, Tensor]], dict[str, Tensor]] | None = None
    """Returns the tensors with those apart that are several in one, and by the names of most architectures."""
    as_in_gguf: Callable[[Parameters, Tensor], Tensor] | None = None
    """Returns a tensor of a folder, by GGUF's name, as GGUF files have it."""
    predicting: Predicting | None = None

    # adapters
    has_multipliers: bool = False
    """Whether GGUF files have multipliers in their weights that folders state."""
    adapter_order: Callable[[Parameters, Tensor, Tensor, bool], tuple[Tensor, Tensor]] | None = None
    """Returns the two matrices of an adapter's change with rows and inputs in the checkpoint's order. The last argument
    says whether it is of a folder."""
