"""Two ways to run the model, one face: the float network in PyTorch, the IR in OpenVINO."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import openvino
import torch
from transformers import LlamaForCausalLM


class Scorer(Protocol):
    """A language model that tells log-probabilities."""

    def log_probabilities(self, ids: list[int]) -> np.ndarray:
        """float32 [len(ids), vocabulary]: of each token that may follow each position, in nats."""
        ...

    def begin(self, ids: list[int]) -> np.ndarray:
        """Start a new text; float32 [vocabulary], log-probabilities after `ids`."""
        ...

    def follow(self, token: int) -> np.ndarray:
        """Add one token to the text; log-probabilities after it, [vocabulary]."""
        ...


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities over the last axis, computed in float32."""
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
    def begin(self, ids: list[int]) -> np.ndarray:
        """See Scorer."""
        return self._advance(ids, None)

    @torch.inference_mode()
    def follow(self, token: int) -> np.ndarray:
        """See Scorer."""
        return self._advance([token], self._past)

    def _advance(self, ids: list[int], past: object) -> np.ndarray:
        answer = self._network(input_ids=torch.tensor([ids]), past_key_values=past, use_cache=True)
        self._past = answer.past_key_values
        return answer.logits[0, -1].log_softmax(-1).numpy()


class OpenVinoScorer:
    """The stateful IR on the CPU, at OpenVINO's default precision or at a named one ("f32")."""

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

    def begin(self, ids: list[int]) -> np.ndarray:
        """See Scorer."""
        self._restart()
        return log_softmax(self._advance(ids)[-1])

    def follow(self, token: int) -> np.ndarray:
        """See Scorer."""
        return log_softmax(self._advance([token])[-1])

    def _restart(self) -> None:
        self._request.reset_state()
        self._length = 0

    def _advance(self, ids: list[int]) -> np.ndarray:
        """Logits [len(ids), vocabulary] of the next tokens of the present text."""
        end = self._length + len(ids)
        values = {
            "input_ids": np.array([ids], dtype=np.int64),
            "attention_mask": np.ones((1, end), dtype=np.int64),
            "position_ids": np.arange(self._length, end, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, dtype=np.int32),
        }
        self._length = end
        answer = self._request.infer({name: value for name, value in values.items() if name in self._inputs})
        return np.array(answer["logits"][0])


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
    """Continue `prompt` until `end` (which is included) or for `tokens` tokens; temperature 0 is greedy."""
    draw = np.random.default_rng(seed)
    following = scorer.begin(prompt)
    written: list[int] = []
    while True:
        token = int(following.argmax()) if temperature == 0 else _sample(following, temperature, top_p, draw)
        written.append(token)
        if token == end or len(written) == tokens:
            return written
        following = scorer.follow(token)


def _sample(log_probabilities: np.ndarray, temperature: float, top_p: float, draw: np.random.Generator) -> int:
    """One token from the nucleus of the tempered distribution."""
    chances = np.exp(log_softmax(log_probabilities / temperature)).astype(np.float64)
    order = np.argsort(-chances)
    kept = order[: int(np.searchsorted(np.cumsum(chances[order]), top_p)) + 1]
    return int(draw.choice(kept, p=chances[kept] / chances[kept].sum()))
