"""Two runtimes of the model with one interface: the float network in PyTorch, the IR in OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import openvino
import torch
from transformers import LlamaForCausalLM


class Scorer(Protocol):
    """A language model that returns log-probabilities."""

    def log_probabilities(self, ids: list[int]) -> np.ndarray:
        """Return log-probabilities in nats of the next token after each position: float32 [len(ids), vocabulary]."""
        ...

    def start(self, ids: list[int]) -> np.ndarray:
        """Start a new text; return the log-probabilities after `ids`: float32 [vocabulary]."""
        ...

    def append_token(self, token: int) -> np.ndarray:
        """Append one token to the text; return the log-probabilities after it: float32 [vocabulary]."""
        ...


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return log-probabilities over the last axis, float32 of the same shape."""
    shifted = logits.astype(np.float32) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class TorchScorer:
    """The float network, evaluated in float32."""

    def __init__(self, folder: Path) -> None:
        self._network = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._past = None

    @torch.inference_mode()
    def log_probabilities(self, ids: list[int]) -> np.ndarray:
        """See Scorer."""
        logits = self._network(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        return logits.log_softmax(-1).numpy()

    @torch.inference_mode()
    def start(self, ids: list[int]) -> np.ndarray:
        """See Scorer."""
        return self._advance(ids, None)

    @torch.inference_mode()
    def append_token(self, token: int) -> np.ndarray:
        """See Scorer."""
        return self._advance([token], self._past)

    def _advance(self, ids: list[int], past: object) -> np.ndarray:
        output = self._network(input_ids=torch.tensor([ids]), past_key_values=past, use_cache=True)
        self._past = output.past_key_values
        return output.logits[0, -1].log_softmax(-1).numpy()


class OpenVinoScorer:
    """The stateful IR on the CPU, at OpenVINO's default precision or a given one ("f32")."""

    def __init__(self, folder: Path, precision: str | None = None) -> None:
        settings = {"PERFORMANCE_HINT": "LATENCY"}
        if precision is not None:
            settings |= {"INFERENCE_PRECISION_HINT": precision, "KV_CACHE_PRECISION": precision}
        model = openvino.Core().read_model(folder / "openvino_model.xml")
        self._request = openvino.compile_model(model, "CPU", settings).create_infer_request()
        self._inputs = {name for port in self._request.model_inputs for name in port.get_names()}
        self._length = 0

    def log_probabilities(self, ids: list[int]) -> np.ndarray:
        """See Scorer."""
        self._restart()
        return log_softmax(self._advance(ids))

    def start(self, ids: list[int]) -> np.ndarray:
        """See Scorer."""
        self._restart()
        return log_softmax(self._advance(ids)[-1])

    def append_token(self, token: int) -> np.ndarray:
        """See Scorer."""
        return log_softmax(self._advance([token])[-1])

    def _restart(self) -> None:
        self._request.reset_state()
        self._length = 0

    def _advance(self, ids: list[int]) -> np.ndarray:
        """Append `ids` to the current text; return their logits: float32 [len(ids), vocabulary]."""
        end = self._length + len(ids)
        values = {
            "input_ids": np.array([ids], dtype=np.int64),
            "attention_mask": np.ones((1, end), dtype=np.int64),
            "position_ids": np.arange(self._length, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        self._length = end
        output = self._request.infer({name: value for name, value in values.items() if name in self._inputs})
        return np.array(output["logits"][0])


def generate(
    scorer: Scorer,
    prompt: list[int],
    *,
    end: int,
    tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> list[int]:
    """Return a continuation of `prompt` up to and including `end`, or of `tokens` tokens; temperature 0 is greedy."""
    rng = np.random.default_rng(seed)
    log_probabilities = scorer.start(prompt)
    generated: list[int] = []
    while True:
        token = (
            int(log_probabilities.argmax()) if temperature == 0 else _sample(log_probabilities, temperature, top_p, rng)
        )
        generated.append(token)
        if token == end or len(generated) == tokens:
            return generated
        log_probabilities = scorer.append_token(token)


def _sample(log_probabilities: np.ndarray, temperature: float, top_p: float, rng: np.random.Generator) -> int:
    """Sample one token from the nucleus of the distribution after temperature. `log_probabilities` is [vocabulary]."""
    probabilities = np.exp(log_softmax(log_probabilities / temperature)).astype(np.float64)
    order = np.argsort(-probabilities)
    kept = order[: int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1]
    return int(rng.choice(kept, p=probabilities[kept] / probabilities[kept].sum()))
