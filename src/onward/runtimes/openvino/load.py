"""Loads a model folder as an OpenVINOModel that is ready for its first step."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from onward.engine.model import Row
from onward.errors import ModelFolderError
from onward.machine import available_memory
from onward.runtimes.files import CONFIG, read_object, stated_context
from onward.runtimes.fingerprint import fingerprint, with_facts
from onward.runtimes.openvino import kv_cache
from onward.runtimes.openvino.batch import INPUTS, Batch
from onward.runtimes.openvino.configuration import computes_float32, configuration, processor_limit
from onward.runtimes.openvino.evaluator import Evaluator, Lane
from onward.runtimes.openvino.file_names import GRAPH, LONGEST_CONTEXT, SHARED, WEIGHTS
from onward.runtimes.openvino.graph import last_line, read_paged
from onward.runtimes.openvino.invariance import (
    NOTE,
    find_window,
    have_same_bits,
    store_result,
    stored_result,
    stored_window,
)
from onward.runtimes.openvino.kv_cache import KVTensors
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.mapped_weights import MappedWeights
from onward.runtimes.openvino.model import OpenVINOModel
from onward.runtimes.openvino.weights import (
    DEFAULT_GROUP,
    KERNEL_BLOCK,
    activation_group,
    group_long_rows,
    states_float32,
)
from onward.runtimes.openvino.window import Window
from onward.runtimes.options import RuntimeOptions

MAX_TINY_WEIGHTS_BYTES = 16 * 2**20
"""Weights up to which a second graph is compiled, for one thread: in small steps it may be faster than several threads
that wait for each other after every layer. It needs the memory of the weights once more."""

_ASSUMED_CONTEXT = 2048


def load_model(folder: Path, options: RuntimeOptions | None = None, *, content: str | None = None) -> OpenVINOModel:
    """Read, rebuild and compile the folder's model, allocate its KV cache, and check it with a few small steps.

    `content` identifies what is in the folder; None: the files' own contents do. A folder that was made from another
    file may differ in what changes no result, such as the names of nodes.
    Slow; blocks. Raises ModelFolderError (files, graph), MemoryTooSmall (KV cache), SetupError (options that do not
    fit).
    """
    options = options or RuntimeOptions()
    core = ov.Core()
    weights = MappedWeights(folder / WEIGHTS, behind=folder / SHARED)
    with ThreadPoolExecutor(1, thread_name_prefix="fingerprint") as hashing, weights.pages_dropped():
        model = read_paged(core, folder, weights.tensor)
        group = activation_group(core, model)
        files, known_content = (_files(folder), []) if content is None else ([], [content])
        in_float32 = computes_float32(core, model, options)
        facts = [*known_content, *_facts(core, model, options, group)]
        identity = hashing.submit(fingerprint, files, facts, options.cache_dir)
        context_length, notes = _context_length(folder, options)
        if in_float32:
            group_long_rows(model, KERNEL_BLOCK if options.precision == "exact" else group or DEFAULT_GROUP)
        tiny = weights.num_bytes <= MAX_TINY_WEIGHTS_BYTES
        config = configuration(options, group, tiny=tiny, in_float32=in_float32)
        compiled = _compile(core, model, folder, config)
        threads = int(compiled.get_property("INFERENCE_NUM_THREADS"))
        spare = model if tiny and threads > 1 else None
        del model
        names = _input_names(compiled, folder)
        layers = kv_cache.cache_layers(compiled)
        plan = kv_cache.plan(layers, context_length, available_memory().free_bytes, options.kv_memory)
        cache = KVTensors(layers, plan.blocks)
        lane = _lane(compiled, names, cache, threads)
        vocab_size = _trial_step(lane, cache, folder)
        evaluator = Evaluator(lane, vocab_size)
        known, unproven = _make_invariant(evaluator, vocab_size, identity.result(), threads, options.cache_dir)
        if spare is not None and evaluator.window == Window():
            one_thread = partial(_one_thread, core, spare, config, names, cache)
            same_bits = partial(_same_bits, lane, vocab_size=vocab_size, context_length=plan.context_length)
            evaluator.small_lane = _small_lane(one_thread, same_bits, f"{known} {threads} and 1", options.cache_dir)
        return OpenVINOModel(
            evaluator,
            cache,
            weights,
            vocab_size=vocab_size,
            context_length=plan.context_length,
            fingerprint=known,
            notes=[*notes, *plan.notes, *unproven],
        )


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


def _one_thread(
    core: ov.Core, model: ov.Model, config: dict[str, Any], names: frozenset[str], cache: KVTensors
) -> Lane:
    """Compile the model once more, for one thread over the same KV cache."""
    compiled = core.compile_model(model, "CPU", config | {"INFERENCE_NUM_THREADS": 1})
    return _lane(compiled, names, cache, threads=1)


def _same_bits(lane: Lane, small: Lane, vocab_size: int, context_length: int) -> bool:
    one, other = (partial(each.evaluate, vocab_size=vocab_size) for each in (lane, small))
    return have_same_bits(one, other, vocab_size, context_length)


def _small_lane(
    make: Callable[[], Lane], same_bits: Callable[[Lane], bool], key: str, cache_dir: Path | None
) -> Lane | None:
    """Return a lane for small steps, None if it fails or has other bits: what only saves time never prevents loading.

    The result of the check is stored under `key`.
    """
    known = stored_result(cache_dir, key)
    if known is False:
        return None
    try:
        small = make()
        if known is None:
            known = same_bits(small)
            store_result(cache_dir, key, known)
    except RuntimeError:
        return None
    return small if known else None


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


def _compile(core: ov.Core, model: ov.Model, folder: Path, config: dict[str, Any]) -> ov.CompiledModel:
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


def _lane(compiled: ov.CompiledModel, names: frozenset[str], cache: KVTensors, threads: int) -> Lane:
    request = compiled.create_infer_request()
    cache.bind(request)
    return Lane(request, Batch(request, names, cache.scratch, threads))


def _trial_step(lane: Lane, cache: KVTensors, folder: Path) -> int:
    """Evaluate three tokens in the scratch block, with logits for two of them; return the size of the vocabulary."""
    lane.batch.fill([Row(-1, (0, 0, 0), 0, (cache.scratch,), 2)])
    try:
        logits = lane.request.infer(share_outputs=True)[0]
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
    config = read_object(folder / CONFIG)
    stated, longest = stated_context(config), config.get(LONGEST_CONTEXT)
    if stated is not None:
        notes = [
            f"The context is the {stated} tokens of the model's first training. It takes up to {longest} with the "
            f"positions of its second one, if --context-length asks for more than {stated}."
        ]
        return options.context_within(stated, folder.name), notes if type(longest) is int else []
    length = options.context_length or _ASSUMED_CONTEXT
    return length, [f"config.json does not state a context length; assuming {length} tokens."]
