"""Tiny checkpoints with a layer that predicts one more token, as files of MiMo, Qwen 3.5 and DeepSeek-V3 have it, and
its formula in float64 (DeepSeek-V3's report, arXiv 2412.19437, section 2.2, and the models' own code)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.checkpoints import latent, ling, qwen35
from tests.checkpoints.hugging_face import hugging_face_name, one_by_one, safetensors_bytes, write_folder
from tests.checkpoints.making import write_gguf
from tests.checkpoints.reference import COHERE, Array, Reference
from tests.checkpoints.tiny import HIDDEN, _Tensors, tiny

Arrays = dict[str, NDArray[np.float32]]
NUMBERED_ON = (latent.KIND, "glm4moe", "cohere2moe", ling.KIND)
"""In folders, the layer has the number after the last one's."""
HIDDEN_FIRST = ("qwen2",)
"""MiMo's projection reads the hidden state first, and then the embedding."""
OWN = {
    "qwen2": {
        "eh_proj": "input_proj", "enorm": "token_layernorm", "hnorm": "hidden_layernorm",
        "shared_head_norm": "final_layernorm",
    },
    "qwen35": {
        "eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head_norm": "norm",
    },
    "numbered on": {
        "eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head_norm": "shared_head.norm",
    },
    ling.KIND: {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head_norm": "final_layernorm"},
}  # fmt: skip
"""Names in folders of what only such a layer has."""


def predicting_layer(name: str, seed: int = 7) -> Arrays:
    """The tensors of a layer that predicts, behind the others of a tiny checkpoint, by GGUF's names."""
    metadata, _ = tiny(name)
    kind = metadata["general.architecture"]
    stated = {key.removeprefix(f"{kind}."): value for key, value in metadata.items()}
    count = stated["block_count"]
    made = _Tensors(name, stated, np.random.default_rng(seed))
    attending = next(
        layer for layer in reversed(range(count)) if kind not in qwen35.KINDS or not qwen35.is_recurrent(stated, layer)
    )
    tensors = {**made.block(attending), "nextn.eh_proj.weight": 1.5 * made.matrix(HIDDEN, 2 * HIDDEN)}
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        tensors |= made.norm(f"nextn.{norm}")
    return {f"blk.{count}.{part}": array for part, array in tensors.items()}


def write_predicting_gguf(path: Path, name: str, layer: Arrays) -> Path:
    metadata, tensors = tiny(name)
    kind = metadata["general.architecture"]
    metadata[f"{kind}.block_count"] += 1
    metadata[f"{kind}.nextn_predict_layers"] = 1
    if kind == ling.KIND:  # as llama.cpp's converter names it
        layer = {key.replace("nextn.shared_head_norm", "layer_output_norm"): array for key, array in layer.items()}
    return write_gguf(path, metadata, tensors | layer)


def write_predicting_folder(folder: Path, name: str, layer: Arrays) -> Path:
    """Write a folder, with the layer's tensors in a file of their own."""
    metadata, tensors = write_folder(folder, name, num_files=2)
    kind = metadata["general.architecture"]
    count = metadata[f"{kind}.block_count"]
    own, prefix = ("qwen2", "model.mtp_layers.0.") if kind == "qwen2" else ("qwen35", "mtp.layers.0.")
    if kind in NUMBERED_ON:
        own, prefix = ling.KIND if kind == ling.KIND else "numbered on", f"model.layers.{count}."
        layer = (ling if kind == ling.KIND else latent).as_stored(layer)
    if kind in qwen35.KINDS:
        both = qwen35.as_stored(one_by_one(tensors | layer) if kind == "qwen3next" else tensors | layer)
        own_names = f"blk.{count}.", f"model.layers.{count}."
        layer = {key: array for key, array in both.items() if key.startswith(own_names)}
    stored = {}
    for key, array in layer.items():
        if ".nextn." in key:
            part, _, end = key.partition(".nextn.")[2].partition(".")
            stored[f"{'mtp.' if own == 'qwen35' else prefix}{OWN[own][part]}.{end}"] = array
        else:
            stored[hugging_face_name(key, kind).replace(f"model.layers.{count}.", prefix)] = array
    if kind in NUMBERED_ON:
        output = tensors.get("output.weight", tensors["token_embd.weight"])
        stored[f"{prefix}embed_tokens.weight"] = tensors["token_embd.weight"]
        stored[f"{prefix}shared_head.head.weight"] = output
    (folder / "mtp.safetensors").write_bytes(safetensors_bytes(stored))
    index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))
    index["weight_map"] |= dict.fromkeys(stored, "mtp.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


class PredictingReference(Reference):
    """A decoder and a layer that predicts."""

    def __init__(self, metadata: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> None:
        super().__init__(metadata, tensors)
        self.layer = f"blk.{self.stated['block_count']}.nextn."

    def predictions(self, tokens: list[int], drafted: list[int]) -> Array:
        """Logits after each of the tokens but the first one, which the model has computed but for the last one, and
        after each of those that follow, which it has not."""
        hidden = self.tensors["token_embd.weight"][tokens]
        for layer in range(self.stated["block_count"]):
            hidden = self.block(layer, hidden)
        known = list(self.norm(hidden, "output_norm")[: len(tokens) - 1])
        inputs = [self.joined(token, previous) for token, previous in zip(tokens[1:], known, strict=True)]
        for token in drafted:
            inputs.append(self.joined(token, self.returned(inputs)[-1]))
        logits = self.linear(self.returned(inputs), "output" if "output.weight" in self.tensors else "token_embd")
        return logits * self.stated["logit_scale"] if self.kind in COHERE else logits

    def joined(self, token: int, previous: Array) -> Array:
        halves = [
            self.norm(self.tensors["token_embd.weight"][token], f"{self.layer}enorm"),
            self.norm(previous, f"{self.layer}hnorm"),
        ]
        both = np.concatenate(halves[::-1] if self.kind in HIDDEN_FIRST else halves)
        return self.linear(both, f"{self.layer}eh_proj")

    def returned(self, inputs: list[Array]) -> Array:
        moved = self.block(self.stated["block_count"], np.array(inputs))
        return self.norm(moved, f"{self.layer}shared_head_norm")
