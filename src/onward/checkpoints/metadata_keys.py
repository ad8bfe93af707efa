"""What becomes of each key of a GGUF file's metadata that llama.cpp reads for the architectures of the table.

A key is used, or refused by name, or it is in a list with the reason why it cannot change what is computed. What is
in none of them is not read by llama.cpp for the architecture: it is left out, and the operator gets a note.

Source: llama.cpp (as in llama_cpp_python 0.3.36): `llama_model_base::load_hparams` of src/llama-model.cpp, and
`load_arch_hparams` of src/models/ARCHITECTURE.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping

from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.parameters import WINDOW
from onward.checkpoints.table import declared

USED = frozenset({
    "context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.causal",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear",
    "rope.scaling.attn_factor", "rope.scaling.original_context_length",
})  # fmt: skip
"""By every architecture; those of one alone are in its record (`declaration.Declaration.keys`)."""
REFUSED: dict[str, str] = {
    "attn_logit_softcapping": "soft-capped attention",
    "final_logit_softcapping": "soft-capped logits",
    "logit_scale": "scaled logits",
    "residual_scale": "scaled residuals",
    "embedding_scale": "scaled embeddings",
    "attention.scale": "a scale of attention of its own",
    "attention.temperature_scale": "queries that grow with their position",
    "expert_count": "a mixture of experts",
    "expert_used_count": "a mixture of experts",
    "expert_group_count": "groups of experts",
    "expert_group_used_count": "groups of experts",
    "expert_shared_feed_forward_length": "a shared expert",
    "moe_latent_size": "experts of a smaller space",
    "nextn_predict_layers": "layers that predict several tokens",
    "ssm.state_size": "state-space layers",
    "attention.kv_lora_rank": "latent attention",
    "attention.q_lora_rank": "latent attention",
    "attention.alibi_bias_max": "ALiBi positions",
    "attention.max_alibi_bias": "ALiBi positions",
    "attention.clamp_kqv": "clamped queries",
    "deepstack_mapping": "layers that read an image",
    "rope.dimension_sections": "positions in an image",
    "rope.scaling.alpha": "positions that are scaled by 'dynamic' with an 'alpha'",
}
"""Where they are neither zero nor used, and what they stand for."""
SAME_AS: dict[str, str] = {
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_swa": "attention.value_length",
    "rope.dimension_count_swa": "rope.dimension_count",
}
"""Sizes that are refused where they differ from another one."""
CANNOT_MATTER: dict[str, str] = {
    "vocab_size": "llama.cpp names the size of a model by it; the tokens are counted",
    "tensor_data_layout": "written by old converters; llama.cpp has a name for it and never reads it",
    "use_parallel_residual": "StableLM's blocks say it by having one norm or two",
    "attention.temperature_length": "of 'attention.temperature_scale', which is refused where it is read with it",
    "embedding_length_out": "for embeddings, which no completion asks for",
    "expert_shared_count": "of those architectures here for which it is read, their size together is stated, too",
    "n_deepstack_layers": "of layers that read what is made of an image; a text has nothing there",
    "pooling_type": "for embeddings, which no completion asks for",
    "classifier.pooling_type": "for classifiers; their output layer is a tensor that is refused",
    "classifier.output_labels": "for classifiers; their output layer is a tensor that is refused",
    "rope.freq_base_swa": "of the graphs that have it, Gemma's and gpt-oss's rotate by it; others use 'rope.freq_base'",
    "rope.scaling.finetuned": "only Granite's graph uses it; elsewhere it is written and never read again",
}
"""Keys that llama.cpp reads, and why they cannot change a completion's numbers."""
TOKENIZER = "tokenizer.ggml."
"""Begins the names of keys that say how a text becomes tokens."""
TOKENIZER_USED = frozenset({
    "model", "pre", "tokens", "token_type", "scores", "merges", "bos_token_id", "eos_token_id", "eot_token_id",
    "eom_token_id", "unknown_token_id", "add_bos_token", "add_eos_token", "add_space_prefix", "suppress_tokens",
    "fim_pre_token_id", "fim_suf_token_id", "fim_mid_token_id", "fim_pad_token_id", "fim_rep_token_id",
    "fim_sep_token_id", "prefix_token_id", "suffix_token_id", "middle_token_id",
})  # fmt: skip
TOKENIZER_CANNOT_MATTER: dict[str, str] = {
    "token_type_count": "for embeddings of BERT's types of tokens",
    "cls_token_id": "for classifiers; llama.cpp has a name for it and never reads it",
    "mask_token_id": "for models that fill masks, of which none is in the table of architectures",
    "seperator_token_id": "separates two texts of classifiers and embeddings",
    "add_sep_token": "separates two texts of classifiers and embeddings",
    "padding_token_id": "fills batches of equal lengths, which neither Onward nor llama.cpp computes",
    "remove_extra_whitespaces": "only Unigram tokenizers do it, which are refused by their model",
    "precompiled_charsmap": "only Unigram tokenizers do it, which are refused by their model",
    "normalizer.lowercase": "only tokenizers do it that are refused by their model or their rule",
    "normalizer.strip_accents": "only tokenizers do it that are refused by their model or their rule",
}
"""The same two lists for tokenizers, of which llama.cpp reads in `llama_vocab::impl::load` of src/llama-vocab.cpp."""


def understood(metadata: Mapping[str, MetadataValue], where: str) -> tuple[dict[str, MetadataValue], tuple[str, ...]]:
    """Return the metadata of a GGUF file without what llama.cpp does not read either, and a note about that, if there
    is something. `where` names the file."""
    prefix = f"{metadata.get('general.architecture')}."
    unread = [name for name in metadata if not _is_read(name, prefix)]
    kept = {name: value for name, value in metadata.items() if _is_read(name, prefix)}
    if not unread:
        return kept, ()
    names = ", ".join(repr(name[:80]) for name in unread[:8])
    more = f" and {len(unread) - 8} more" if len(unread) > 8 else ""
    return kept, (f"{where} states {names}{more}, which is not used for this architecture, as in llama.cpp.",)


def _is_read(name: str, prefix: str) -> bool:
    """Return whether llama.cpp reads a key, or it says nothing of architecture or tokenizer."""
    if name.startswith(TOKENIZER):
        key = name.removeprefix(TOKENIZER)
        return key in TOKENIZER_USED or key in TOKENIZER_CANNOT_MATTER
    if not name.startswith(prefix):
        return True
    key = name.removeprefix(prefix)
    used = USED | declared(prefix.removesuffix(".")).keys
    return key in used or key in REFUSED or key in SAME_AS or key == WINDOW or key in CANNOT_MATTER
