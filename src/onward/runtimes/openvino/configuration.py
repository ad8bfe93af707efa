"""Properties of OpenVINO's CPU plugin: threads, precision, the element type of the KV cache.

Precision "fast" means activations quantised in groups of 64 inputs (32 where the groups of the weights require it), a
KV cache in float16, and between the products of matrices bfloat16 or float16 where the CPU has it, unless the model
states float32; "exact" means float32 throughout.
"""

from __future__ import annotations

import os
from typing import Any

from onward.machine import cpu_quota
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.weights import states_float32
from onward.runtimes.options import RuntimeOptions

_MAX_CACHED_KERNELS = 256
"""Compiled kernels that the plugin keeps, about six per number of tokens in a step. The default of 5,000 means memory
that grows as long as new numbers occur. library.py limits oneDNN's own cache in the same way."""

_WITHOUT_INT8 = ("SSE41", "AVX", "AVX2", "AVX512_CORE")
"""Values of ONEDNN_MAX_CPU_ISA with which oneDNN has no products in int8."""
_WITHOUT_BFLOAT16 = (*_WITHOUT_INT8, "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE_VNNI")
"""The same for bfloat16. OpenVINO asks the processor instead, and would fail at the first step of a model."""


def processor_limit() -> str | None:
    """Return the instructions that the environment limits oneDNN to; None: all that the processor has."""
    stated = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
    return stated.upper() if stated.upper() not in ("", "DEFAULT", "ALL") else None


def configuration(options: RuntimeOptions, group: int | None, *, in_float32: bool = False) -> dict[str, Any]:
    """Return the properties to compile with.

    `group`: see weights.activation_group; `in_float32`: see computes_float32.
    """
    # Pinned threads would wait for their core while the HTTP thread, a client or another program uses it.
    # OpenVINO's default, an 8-bit KV cache, quantises the keys of a block together: later tokens of a prompt would
    # change the log-probabilities of earlier ones, by up to 0.1 nats. In 16 bits, each token's keys are its own.
    config: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
        "KV_CACHE_PRECISION": "f16",
        "CPU_RUNTIME_CACHE_CAPACITY": _MAX_CACHED_KERNELS,
    }
    threads = options.threads or cpu_quota()
    if threads:
        config["INFERENCE_NUM_THREADS"] = threads
    if options.precision == "exact":
        config |= {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        }
        return config
    if in_float32:
        config["INFERENCE_PRECISION_HINT"] = "f32"
    if processor_limit() in _WITHOUT_INT8:
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"
    elif group is not None:
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = str(group)
    return config


def computes_float32(core: ov.Core, model: ov.Model, options: RuntimeOptions) -> bool:
    """Return whether numbers are float32 between the products of matrices: by request, because the model states it, or
    because the processor has no shorter type."""
    if options.precision == "exact" or states_float32(model) or processor_limit() in _WITHOUT_BFLOAT16:
        return True
    return bool(core.get_property("CPU", "INFERENCE_PRECISION_HINT") == ov.Type.f32)
