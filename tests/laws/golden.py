"""Hashes of all logits of tiny models: `python -m tests.laws.golden` writes them to golden.json.

They change only with the kernels' revision, never with the machine."""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Literal

import numpy as np

from onward.engine.model import Row
from onward.runtimes.gguf_format import GGUFFormat
from onward.runtimes.options import RuntimeOptions
from tests.checkpoints.making import floats, write_gguf
from tests.checkpoints.tiny import tiny

FILE = Path(__file__).parent / "golden.json"
NAMES = (
    "llama", "qwen2", "qwen3", "gemma3", "phi3", "starcoder2", "granite", "smollm3", "olmo2", "stablelm", "gpt2",
    "gptneox", "cohere2",
)  # fmt: skip
Precision = Literal["fast", "exact"]
PRECISIONS: tuple[Precision, ...] = ("fast", "exact")
NUM_TOKENS = 70


def logits_hash(name: str, precision: Precision, folder: Path) -> str:
    """SHA-256 of the logits at every position of a sequence."""
    metadata, tensors = tiny(name)
    # rounded, so that no library's last bit of a random number matters
    rounded = {key: np.round(array.astype(np.float64) * 1024) / 1024 for key, array in tensors.items()}
    path = write_gguf(folder / "m.gguf", metadata, {key: floats(array) for key, array in rounded.items()})
    options = RuntimeOptions(runtime="native", threads=1, precision=precision, kv_memory=4_000_000)
    model = GGUFFormat().load(path, options, lambda line: None).model
    try:
        tokens = [(7 * index + index * index) % model.vocab_size for index in range(NUM_TOKENS)]
        logits = model.evaluate([Row(0, tokens, 0, range(3), NUM_TOKENS)])
        return hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()
    finally:
        model.close()


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            for precision in PRECISIONS:
                found[f"{name} {precision}"] = logits_hash(name, precision, Path(folder))
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
