"""Two runtimes of the model with one interface: the float network in PyTorch, the file that ships in Onward's."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from transformers import LlamaForCausalLM

from onward.engine.model import Row
from onward.model_files.gguf import GGUFFiles
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model


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


class ServedScorer:
    """The GGUF file in Onward's own runtime, as it is served, at a precision of its ("fast" or "exact")."""

    def __init__(self, file: Path, precision: Literal["fast", "exact"] = "fast") -> None:
        options = RuntimeOptions(precision=precision)
        self._model = load_model(GGUFFiles(file), options, lambda line: None).model
        self._blocks = range(self._model.shape.blocks_for(self._model.context_length))
        self._length = 0

    def log_probabilities(self, ids: list[int]) -> np.ndarray:
        """See Scorer."""
        self._length = 0
        return log_softmax(self._advance(ids, len(ids)))

    def start(self, ids: list[int]) -> np.ndarray:
        """See Scorer."""
        self._length = 0
        return log_softmax(self._advance(ids, 1)[-1])

    def append_token(self, token: int) -> np.ndarray:
        """See Scorer."""
        return log_softmax(self._advance([token], 1)[-1])

    def _advance(self, ids: list[int], outputs: int) -> np.ndarray:
        """Append `ids` to the current text; return the last `outputs` logits: float32 [outputs, vocabulary]."""
        logits = self._model.evaluate([Row(0, ids, self._length, self._blocks, outputs)])
        self._length += len(ids)
        return np.array(logits)


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
