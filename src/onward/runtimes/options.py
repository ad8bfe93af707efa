"""How a model folder shall be loaded. Free of openvino, so that settings can speak of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """`threads` 0: all physical cores (a container's CPU quota counts as its cores).

    `precision` "fast" takes OpenVINO's defaults (bfloat16 or float16 compute where the CPU has it, activations
    quantised in groups of 64 inputs, or 32 where the weights' own groups ask for it) with a 16-bit KV cache; "exact"
    computes and caches in float32, activations not quantised.
    `kv_memory` is in bytes; None: the lesser of a quarter of the free memory and what SEQUENCES_AT_ONCE
    sequences of full length need. `cache_dir` keeps file hashes and proofs (invariance.py) between starts
    (compiled graphs are made faster than OpenVINO's CPU cache reads them back).
    `context_length` None: the model's own.
    """

    threads: int = 0
    precision: Literal["fast", "exact"] = "fast"
    kv_memory: int | None = None
    cache_dir: Path | None = None
    context_length: int | None = None
