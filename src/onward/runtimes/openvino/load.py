"""Loads a model folder as an OpenVINOModel that is ready for its first step.

Precision "fast" means activations quantised in groups of 64 inputs (32 where the groups of the weights require it), a
KV cache in float16, and between the products of matrices bfloat16 or float16 where the CPU has it, unless the model
states float32; "exact" means float32 throughout.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.mapped import FileWatch
from onward.engine.model import Row
from onward.errors import ModelFolderError
from onward.machine import available_memory, cpu_quota
from onward.model_files.files import CONFIG, missing_file, read_if_present, stated_context
from onward.model_files.openvino_ir import GRAPH, WEIGHTS
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.fingerprint import fingerprint, with_facts
from onward.runtimes.openvino import kv_cache
from onward.runtimes.openvino.batch import INPUTS, Batch
from onward.runtimes.openvino.graph import last_line, read_paged
from onward.runtimes.openvino.invariance import NOTE, find_window, stored_window
from onward.runtimes.openvino.kv_cache import KVTensors
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.model import Evaluator, OpenVINOModel
from onward.runtimes.openvino.weights import (
    DEFAULT_GROUP,
    KERNEL_BLOCK,
    activation_group,
    group_long_rows,
    states_float32,
)
from onward.runtimes.openvino.window import Window

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


_ASSUMED_CONTEXT = 2048


class _Stack(ctypes.Structure):
    """`stack_t` of sigaltstack(2), as Linux lays it out."""

    _fields_ = (("base", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Restore the calling thread's alternative signal stack, or that there is none, at the end of the block.

    On Linux, the CPU plug-in installs a stack of its own for signal handlers (sigaltstack(2)) on the thread that
    creates it, and unmaps that stack when it is destroyed, on whichever thread that happens. On any other thread it
    cannot uninstall it, so that the next signal with a Python handler would write to unmapped memory: SIGSEGV, long
    after a model was closed. Does nothing on other systems.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    sigaltstack = ctypes.CDLL(None).sigaltstack
    before = _Stack()
    if sigaltstack(None, ctypes.byref(before)) != 0:
        yield
        return
    try:
        yield
    finally:
        sigaltstack(ctypes.byref(before), None)


@signal_stack_kept()
def load_model(folder: Path, options: RuntimeOptions | None = None) -> OpenVINOModel:
    """Read, rebuild and compile the folder's model, allocate its KV cache, and check it with a few small steps.

    Slow; blocks. Raises ModelFolderError (files, graph), MemoryTooSmall (KV cache), SetupError (options that do not
    fit).
    """
    options = options or RuntimeOptions()
    core = ov.Core()
    weights = _mapped(folder / WEIGHTS)
    watch = FileWatch([folder / WEIGHTS])
    with ThreadPoolExecutor(1, thread_name_prefix="fingerprint") as hashing:
        model = read_paged(core, folder, ov.Tensor(weights, ov.Shape([weights.size]), ov.Type.u8))
        group = activation_group(core, model)
        in_float32 = computes_float32(core, model, options)
        identity = hashing.submit(fingerprint, _files(folder), _facts(core, model, options, group), options.cache_dir)
        context_length, notes = _context_length(folder, options)
        if in_float32:
            group_long_rows(model, KERNEL_BLOCK if options.precision == "exact" else group or DEFAULT_GROUP)
        compiled = _compile(core, model, folder, configuration(options, group, in_float32=in_float32))
        threads = int(compiled.get_property("INFERENCE_NUM_THREADS"))
        del model
        names = _input_names(compiled, folder)
        layers = kv_cache.cache_layers(compiled)
        plan = kv_cache.plan(
            layers, context_length, available_memory().free_bytes, options.kv_memory, options.max_sequences
        )
        cache = KVTensors(layers, plan.blocks)
        request = compiled.create_infer_request()
        cache.bind(request)
        batch = Batch(request, names, cache.scratch, threads)
        vocab_size = _trial_step(request, batch, cache, folder)
        evaluator = Evaluator(request, batch, vocab_size)
        known, unproven = _make_invariant(evaluator, vocab_size, identity.result(), threads, options.cache_dir)
        return OpenVINOModel(
            evaluator,
            cache,
            weights,
            watch,
            vocab_size=vocab_size,
            context_length=plan.context_length,
            fingerprint=known,
            notes=[*notes, *plan.notes, *unproven],
        )


def _mapped(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of the weights, mapped. Raises ModelFolderError for a file that is missing or may not be read. A
    graph may have no weights at all."""
    if not path.is_file():
        raise ModelFolderError(missing_file(path))
    try:
        return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path} cannot be read ({error}).") from None


def _make_invariant(
    evaluator: Evaluator, vocab_size: int, identity: str, threads: int, cache_dir: Path | None
) -> tuple[str, list[str]]:
    """Limit steps to sizes at which no row's bits depend on the others. Return the fingerprint and notes."""

    def find() -> Window | None:
        return find_window(lambda window: evaluator.use(window).evaluate, vocab_size)

    window = stored_window(cache_dir, f"{identity} {threads}", find)
    evaluator.use(window or Window())
    if window == Window():
        return identity, []
    if window is None:
        return with_facts(identity, None, threads), [NOTE]
    if window.min_tokens == Window().min_tokens:
        return with_facts(identity, window.label), []
    # Where sums are split in short steps only, they may be split into one part per thread.
    return with_facts(identity, window.label, threads), []


def _files(folder: Path) -> list[Path]:
    return [folder / GRAPH, folder / WEIGHTS]


def _facts(core: ov.Core, model: ov.Model, options: RuntimeOptions, group: int | None) -> list[str]:
    """Return what results depend on besides the files. Not on the number of threads: tests of determinism compare."""
    abilities = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    processor = [str(core.get_property("CPU", "FULL_DEVICE_NAME")), *sorted(abilities)]
    if (limit := processor_limit()) is not None:
        processor.append(f"at most {limit}")
    facts = [ov.get_version(), options.precision, *processor, f"activations in groups of {group or 'the default'}"]
    return [*facts, "float32 between products"] if states_float32(model) else facts


def _compile(core: ov.Core, model: ov.Model, folder: Path, config: dict[str, object]) -> ov.CompiledModel:
    try:
        return core.compile_model(model, "CPU", config)
    except RuntimeError as error:
        raise ModelFolderError(f"{folder}: OpenVINO cannot compile this model ({last_line(error)}).") from error


def _input_names(compiled: ov.CompiledModel, folder: Path) -> frozenset[str]:
    names = frozenset(
        name
        for name in (port.get_any_name() for port in compiled.inputs)
        if not name.startswith(("key_cache.", "value_cache."))
    )
    if unknown := names - INPUTS:
        raise ModelFolderError(
            f"{folder} is not a text-only decoder: its graph has further inputs ({', '.join(sorted(unknown))})."
        )
    return names


def _trial_step(request: ov.InferRequest, batch: Batch, cache: KVTensors, folder: Path) -> int:
    """Evaluate three tokens in the scratch block, with logits for two of them; return the size of the vocabulary."""
    batch.fill([Row(-1, (0, 0, 0), 0, (cache.scratch,), 2)])
    try:
        logits = request.infer(share_outputs=True)[0]
    except RuntimeError as error:
        raise ModelFolderError(f"{folder}: the model fails at its first step ({last_line(error)}).") from error
    vocab_size = int(logits.shape[-1])
    if math.prod(logits.shape) != 2 * vocab_size:
        raise ModelFolderError(
            f"{folder}: 2 rows of logits were requested, but the graph returned the shape {list(logits.shape)}."
        )
    return vocab_size


def _context_length(folder: Path, options: RuntimeOptions) -> tuple[int, list[str]]:
    """Return the tokens per sequence, and a note where they had to be assumed. Raises SetupError."""
    config = read_if_present(folder / CONFIG)
    stated = stated_context(config)
    if stated is not None:
        return options.context_within(stated, folder.name), []
    length = options.context_length or _ASSUMED_CONTEXT
    return length, [f"config.json does not state a context length; assuming {length} tokens."]
