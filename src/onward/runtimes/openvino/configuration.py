"""What is asked of OpenVINO's CPU plugin: threads, precision, the KV cache's type."""

from __future__ import annotations

from typing import Any

from onward.machine import cpu_quota
from onward.runtimes.openvino.library import ov
from onward.runtimes.options import RuntimeOptions

_KEPT_KERNELS = 256
"""Compiled kernels that the plugin keeps, some six for every number of tokens in a step: by default 5,000, a memory
that grows as long as new numbers come. The same bound for oneDNN's own stands in library.py."""
_KEPT_BY_TINY = 96
"""The same for each of the two graphs of a tiny model, whose kernels take more memory than its weights."""


def configuration(options: RuntimeOptions, group: int | None, *, tiny: bool) -> dict[str, Any]:
    """Properties to compile with. `group`: see weights.activation_group; `tiny`: see load.TINY_WEIGHTS."""
    # Pinned threads wait for their core while the HTTP thread, a client or another program holds it.
    # OpenVINO's default, an 8-bit cache, quantises the keys of a block together: what comes later in a prompt would
    # then change the log-probabilities of what comes before it, by up to 0.1 nats. 16 bits keep every token's own.
    config: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
        "KV_CACHE_PRECISION": "f16",
        "CPU_RUNTIME_CACHE_CAPACITY": _KEPT_BY_TINY if tiny else _KEPT_KERNELS,
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
    elif group is not None:
        config["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = str(group)
    return config


def computes_float32(core: ov.Core, options: RuntimeOptions) -> bool:
    """Whether layers compute in float32: asked for, or because the processor has nothing shorter."""
    return options.precision == "exact" or core.get_property("CPU", "INFERENCE_PRECISION_HINT") == ov.Type.f32
