"""A model of a given size with random weights as an OpenVINO IR folder, without torch: `python -m benchmarks.random_ir
FOLDER` writes one in the shape of Qwen2.5-0.5B (int8, 0.5 GB) within a minute.

Speed does not depend on the values of weights, with the exception that `random_model` explains. Two differences from
that model: the MLP's gate and up matrices are one, and norms have no weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.runtimes.openvino.tiny_ir import Shape, write_folder

from benchmarks import measure
from benchmarks.random_model import HIDDEN_SIZE, LOGIT_DEVIATION, VOCAB_SIZE, tokenizer

QWEN_05B = Shape(
    layers=24,
    hidden=HIDDEN_SIZE,
    heads=14,
    kv_heads=2,
    vocab=VOCAB_SIZE,
    wide=8,  # 3 matrices of 4,864 rows there, 2 of 7,168 here
    tied=True,
    head="scaled",
    scale=LOGIT_DEVIATION,
    context_length=32_768,
)


def write(folder: Path, shape: Shape = QWEN_05B) -> Path:
    """Write the model and a tokenizer that has text for every id into `folder`, and return it."""
    write_folder(folder, shape)
    tokenizer(shape.vocab).save(str(folder / "tokenizer.json"))
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_ir", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder to write; it is created if missing")
    options = parser.parse_args()
    print(write(options.folder))
    return 0


if __name__ == "__main__":
    measure.run_main(main)
