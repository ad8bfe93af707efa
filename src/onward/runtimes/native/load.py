"""Loads a checkpoint into the native runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from onward import kernels as kernel_package
from onward.checkpoints.adapter import Change, merged, read_changes
from onward.checkpoints.architecture import Architecture
from onward.checkpoints.architectures import architecture_of, has_long_positions
from onward.checkpoints.checkpoint import Checkpoint
from onward.errors import SetupError
from onward.kernels.activations import ActivationName
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.code import Code
from onward.kernels.code import load as load_code
from onward.kernels.interpreter import Kernels
from onward.kernels.machine import Machine
from onward.kernels.memory import Rows
from onward.kernels.products import ProductKind
from onward.kernels.recipe import Recipe
from onward.kernels.self_test import run_self_test
from onward.kernels.tape import TapeBuilder
from onward.kernels.targets import host
from onward.machine import available_memory, compute_threads
from onward.model_files.base import Progress
from onward.runtimes.base import LoadedModel
from onward.runtimes.fingerprint import fingerprint
from onward.runtimes.kv_plan import mib, plan_kv_cache
from onward.runtimes.native.decoder import Cache, Decoder, matrix_names
from onward.runtimes.native.model import MAX_ROWS, STEP_SHAPE, NativeModel
from onward.runtimes.native.panel_cache import Group, PanelCache, bytes_of
from onward.runtimes.native.positions import Positions
from onward.runtimes.native.types import FLOATS, expansion_note, form_for
from onward.runtimes.native.weights import EMBEDDING, POSITION_EMBEDDING, Weights
from onward.runtimes.options import RuntimeOptions

KERNELS_REVISION = 2
"""Raised with every change of kernels, of a tape, or of how weights are held that may change a bit of a logit."""
FAST_ACTIVATIONS: ActivationName = "int8"
"""What `fast` multiplies with; `exact` multiplies with float32."""
COMPILING = "Compiling the kernels for this processor (once per installation; a few seconds)"


def load_model(checkpoint: Checkpoint, options: RuntimeOptions, progress: Progress) -> LoadedModel:
    """Load a checkpoint. Slow; blocks. Raises as Runtime.load."""
    options.require_possible()
    found = architecture_of(checkpoint, options.context_length)
    _require_form(checkpoint, options)
    adapter_paths, changes = read_changes(checkpoint, options.adapter) if options.adapter else ((), {})
    embedding = f"{EMBEDDING}.weight"
    if embedding in changes:  # rows are looked up: there is no product beside which its change could be computed
        changed = merged(checkpoint.tensor(embedding), changes.pop(embedding))
        checkpoint = replace(checkpoint, tensors={**checkpoint.tensors, embedding: changed})
    facts = [f"native {KERNELS_REVISION}", options.precision, options.weights, FAST_ACTIVATIONS]
    if has_long_positions(checkpoint, options.context_length):
        facts.append("long positions")
    tested = run_self_test()
    if tested.problem:
        facts.append(tested.found)
    with ThreadPoolExecutor(1, thread_name_prefix="fingerprint") as hashing:
        identity = hashing.submit(fingerprint, (*checkpoint.paths, *adapter_paths), facts, options.cache_dir)
        model, notes = _load(checkpoint, found, changes, options, progress)
        return LoadedModel(model, identity.result(), (tested.problem, *notes) if tested.problem else notes)


def _require_form(checkpoint: Checkpoint, options: RuntimeOptions) -> None:
    """Raise SetupError for a quantised file and a form that floating-point weights would be held in."""
    is_quantised = any(tensor.type.name not in FLOATS for tensor in checkpoint.tensors.values())
    if options.weights in ("int8", "int4") and is_quantised:
        raise SetupError(
            f"The weights of {checkpoint.parameters.where} are quantised already, and are computed as they are: "
            f"--weights {options.weights} is for other files."
        )


def _load(
    checkpoint: Checkpoint,
    found: Architecture,
    changes: Mapping[str, Change],
    options: RuntimeOptions,
    progress: Progress,
) -> tuple[NativeModel, tuple[str, ...]]:
    threads = options.threads or compute_threads()
    is_exact = options.precision == "exact"
    weights = Weights(checkpoint, form_for(options), "float32" if is_exact else FAST_ACTIVATIONS, changes)
    names = list(matrix_names(found, weights))
    types = weights.types(iter(names))
    kinds = {ProductKind(types[name], weights.activations(name)): None for name in names}
    tables = [EMBEDDING] if found.rope else [EMBEDDING, POSITION_EMBEDDING]
    context = options.context_within(found.context_length, checkpoint.paths[0].name)
    shape = AttentionShape(
        found.num_heads, found.num_kv_heads, found.head_size, Positions(found, context).rotated, is_wide=is_exact,
        has_window=bool(found.window_layers),
    )  # fmt: skip
    embeddings = tuple(sorted({weights.table(name).type for name in tables}))
    kernels = Kernels(tuple(sorted(kinds, key=lambda kind: kind.name)), embeddings, shape)
    isa = host().isa
    recipe = Recipe(partial(kernels.module_text, isa), (kernels, isa.name), (kernel_package,))
    code = load_code(recipe, notify=lambda: progress(COMPILING))
    panels, note = _panels(weights.groups(names), code, threads, checkpoint)
    weights.use(panels)
    plan = plan_kv_cache(
        found.num_layers * shape.block_bytes, STEP_SHAPE.block_tokens, context, available_memory().free_bytes,
        options.kv_memory,
    )  # fmt: skip
    # all layers of a block side by side: a short sequence touches few huge pages
    cache = Rows.exactly(plan.blocks, found.num_layers * shape.block_bytes)
    positions = Positions(found, plan.context_length)
    tape = TapeBuilder(kernels, MAX_ROWS, threads)
    decoder = Decoder(found, weights, tape, MAX_ROWS)
    logits = decoder.write(
        positions, Cache([cache.without(layer * shape.block_bytes) for layer in range(found.num_layers)])
    )
    longest = max(found.hidden, found.num_heads * found.head_size, found.feed_forward)
    machine = Machine(
        code, tape.finish(), panels, shape, rows=MAX_ROWS, positions=plan.context_length, threads=threads,
        scratch_bytes=kernels.scratch_bytes(isa, longest),
    )  # fmt: skip
    model = NativeModel(
        machine, panels, cache, positions, logits, vocab_size=weights.matrix(weights.output_name()).rows,
        context_length=plan.context_length, blocks=plan.blocks, keep=(tape, weights, checkpoint),
    )  # fmt: skip
    grown = expansion_note(
        checkpoint.tensor(f"{name}.weight") for name in dict.fromkeys(names) if name not in weights.adapter_names()
    )
    return model, (*plan.notes, *(each for each in (_longer_note(checkpoint, found), note, grown) if each))


def _longer_note(checkpoint: Checkpoint, found: Architecture) -> str:
    """Return a sentence on the tokens that a model takes with other positions than it is loaded with, "" if none."""
    stated, longest = found.context_length, checkpoint.parameters.integer("context_length", minimum=1)
    if longest <= stated:
        return ""
    return (
        f"The context is the {stated} tokens of the model's first training. It takes up to {longest} with the "
        f"positions of its second one, if --context-length asks for more than {stated}."
    )


def _panels(groups: Sequence[Group], code: Code, threads: int, checkpoint: Checkpoint) -> tuple[PanelCache, str]:
    """Return the panels of all matrices, and a note where they do not fit into the memory. Raises MemoryTooSmall."""
    free, size, where = available_memory().free_bytes, sum(map(bytes_of, groups)), checkpoint.parameters.where
    advice = "free some, or use a smaller model or a smaller quantisation of it."
    takes = f"The weights of {where} take {mib(size)} of memory, but {mib(free)} are free"
    # the KV cache needs memory, too
    cache = PanelCache(groups, code, threads, size if size <= free else free * 3 // 4, f"{takes}: {advice}")
    if not cache.streamed_bytes:
        return cache, ""
    return (
        cache,
        f"{takes}: every step reads {mib(cache.streamed_bytes)} of them from the file, which is slow; {advice}",
    )
