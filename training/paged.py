"""Check that the IR works in OpenVINO's paged-attention form, which a serving engine runs with its own block tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino
from openvino._offline_transformations import paged_attention_transformation

from training.scoring import Scorer, log_softmax

CHUNK = 64


class PagedModel:
    """One sequence over a paged KV cache whose blocks are in order."""

    def __init__(self, folder: Path, blocks: int = 64) -> None:
        core = openvino.Core()
        model = core.read_model(folder / "openvino_model.xml")
        paged_attention_transformation(model)
        compiled = core.compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY"})
        self._request = compiled.create_infer_request()
        self._block_size = 0
        for port in compiled.inputs:
            if "cache" in port.get_any_name():
                shape = [blocks, *(axis.get_length() for axis in list(port.get_partial_shape())[1:])]
                self._request.set_tensor(port.get_any_name(), openvino.Tensor(port.get_element_type(), shape))
                self._block_size = shape[2]

    def advance(self, ids: list[int], past: int) -> np.ndarray:
        """Return the logits of `ids` after `past` tokens: float32 [len(ids), vocabulary]."""
        end = past + len(ids)
        blocks = -(-end // self._block_size)
        values = {
            "input_ids": np.array(ids, dtype=np.int64),
            "position_ids": np.arange(past, end, dtype=np.int64),
            "past_lens": np.array([past], dtype=np.int32),
            "subsequence_begins": np.array([0, len(ids)], dtype=np.int32),
            "block_indices": np.arange(blocks, dtype=np.int32),
            "block_indices_begins": np.array([0, blocks], dtype=np.int32),
            "max_context_len": np.array(end, dtype=np.int32),
        }
        for name, value in values.items():
            self._request.set_tensor(name, openvino.Tensor(value))
        self._request.infer()
        return np.array(self._request.get_output_tensor(0).data)[:, 0]


def paged_agreement(folder: Path, scorer: Scorer, ids: list[int]) -> dict[str, float]:
    """Return the mean absolute log-probability difference (nats) between the paged form and `scorer` on the tokens
    `ids`.

    The first half is prefilled in chunks, the rest decoded one token at a time, as in a server.
    """
    model = PagedModel(folder)
    half = len(ids) // 2
    sizes = [min(CHUNK, half - start) for start in range(0, half, CHUNK)] + [1] * (len(ids) - 1 - half)
    rows, past = [], 0
    for size in sizes:
        rows.append(model.advance(ids[past : past + size], past))
        past += size
    paged = log_softmax(np.concatenate(rows))
    expected = scorer.log_probabilities(ids[:-1])
    targets = np.arange(len(ids) - 1), ids[1:]
    return {
        "mean_absolute_difference": round(float(np.abs(paged[targets] - expected[targets]).mean()), 5),
        "tokens": len(ids) - 1,
    }
