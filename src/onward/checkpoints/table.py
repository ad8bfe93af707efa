"""The table of architectures, by GGUF's names, and of the model types of folders. A new family is its
name here, twice."""

from __future__ import annotations

from onward.checkpoints.declaration import Declaration, ModelType
from onward.checkpoints.families import (
    apertus,
    arcee,
    cohere,
    deepseek,
    dots,
    ernie,
    exaone,
    falcon,
    falcon_h1,
    gemma,
    gemma3n,
    gemma4,
    glm,
    gpt,
    gpt_oss,
    granite,
    hunyuan,
    lfm2,
    ling,
    llama,
    llama4,
    minimax,
    nemotron_h,
    olmo,
    phi,
    qwen,
    qwen35,
)

FAMILIES = (
    apertus,
    arcee,
    cohere,
    deepseek,
    dots,
    ernie,
    exaone,
    falcon,
    falcon_h1,
    gemma,
    gemma3n,
    gemma4,
    glm,
    gpt,
    gpt_oss,
    granite,
    hunyuan,
    lfm2,
    ling,
    llama,
    llama4,
    minimax,
    nemotron_h,
    olmo,
    phi,
    qwen,
    qwen35,
)
ARCHITECTURES: dict[str, Declaration] = {
    name: found for family in FAMILIES for name, found in family.ARCHITECTURES.items()
}
MODEL_TYPES: dict[str, ModelType] = {
    kind: found for each in ARCHITECTURES.values() for kind, found in each.model_types.items()
}
"""By `model_type`."""
ARCHITECTURE_OF: dict[str, str] = {kind: name for name, each in ARCHITECTURES.items() for kind in each.model_types}
"""GGUF's name of each `model_type`, unless what is stated says otherwise."""
_LIKE_LLAMA = Declaration(decoder=llama.llama, keys=frozenset())


def declared(architecture: str) -> Declaration:
    """Return the record of an architecture; one that declares nothing where the table has none, which whoever computes
    it refuses."""
    return ARCHITECTURES.get(architecture, _LIKE_LLAMA)
