"""Loads a checkpoint into the native runtime."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

from onward.checkpoints.architecture import Architecture, Mixture
from onward.checkpoints.architectures import architecture_of
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.expansion import EXPANDED_TYPES
from onward.checkpoints.mapped import FileWatch
from onward.checkpoints.predictions import with_prediction
from onward.checkpoints.quantised import require_usable_scales
from onward.checkpoints.rope import has_long_positions
from onward.errors import MemoryTooSmall, SetupError
from onward.kernels.activations import ActivationName
from onward.kernels.attention_shape import AttentionShape
from onward.kernels.code import Code
from onward.kernels.code import load as load_code
from onward.kernels.expert_tape import Routing
from onward.kernels.interpreter import Kernels
from onward.kernels.machine import Machine
from onward.kernels.memory import Rows
from onward.kernels.products import ProductKind
from onward.kernels.recurrence import DeltaShape
from onward.kernels.recurrence_tape import Kept
from onward.kernels.self_test import recipes as self_test_recipes
from onward.kernels.self_test import run_self_test
from onward.kernels.tape import float_row_bytes
from onward.kernels.targets import host
from onward.machine import available_memory, compute_threads
from onward.model_files.base import Progress
from onward.runtimes.base import LoadedModel, RuntimeOptions
from onward.runtimes.fingerprint import fingerprint, with_facts
from onward.runtimes.kv_plan import KVPlan, mib, plan_kv_cache
from onward.runtimes.native.adapters import ADAPTER_TYPE, TAPE_GROWTH, NativeAdapters, TapeWriter
from onward.runtimes.native.buffers import Buffers, Cache
from onward.runtimes.native.expert_cache import ExpertCache, least_bytes, total_bytes
from onward.runtimes.native.mixture import ExpertRecords
from onward.runtimes.native.model import MAX_ROWS, STEP_SHAPE, NativeModel
from onward.runtimes.native.panel_cache import PanelCache, bytes_of
from onward.runtimes.native.positions import Positions
from onward.runtimes.native.predictor import PredictorLoader
from onward.runtimes.native.runs import LOG_ROWS
from onward.runtimes.native.types import FLOATS, expansion_note, form_for
from onward.runtimes.native.weights import TABLES, Weights, expert_names, matrix_names

KERNELS_REVISION = 2
"""Raised with every change of kernels, of a tape, or of how weights are held that may change a bit of a logit, and of
where numbers lie in a KV block or a state: they are read from a disk that another version has written."""
FAST_ACTIVATIONS: ActivationName = "int8"
"""What `fast` multiplies with; `exact` multiplies with float32."""
_LINE = 64
_ADVICE = "free some, or use a smaller model or a smaller quantisation of it."
COMPILING = "Compiling the kernels for this processor (once; a few seconds)"


def load_model(checkpoint: Checkpoint, options: RuntimeOptions, progress: Progress) -> LoadedModel:
    """Load a checkpoint. Slow; blocks. Raises as Runtime.load."""
    options.require_possible()
    found = architecture_of(checkpoint, options.context_length)
    _require_form(checkpoint, options)
    require_usable_scales((*checkpoint.tensors.values(), *checkpoint.predictions.values()), checkpoint.parameters.where)
    facts = [f"native {KERNELS_REVISION}", options.precision, options.weights, FAST_ACTIVATIONS]
    if has_long_positions(checkpoint, options.context_length):
        facts.append("long positions")
    with ThreadPoolExecutor(1, thread_name_prefix="fingerprint") as hashing, ExitStack() as on_failure:
        watch = FileWatch(checkpoint.paths)
        on_failure.callback(watch.close)
        identity = hashing.submit(fingerprint, checkpoint.paths, facts, options.cache_dir)
        loaded = _load(checkpoint, found, options, watch, progress)
        on_failure.callback(loaded.model.close)
        loaded = _tested(replace(loaded, fingerprint=identity.result()))
        on_failure.pop_all()
    return loaded


def _tested(loaded: LoadedModel) -> LoadedModel:
    """Return the model, with a note and a fingerprint of its own if kernels compute other numbers on this machine."""
    tested = run_self_test()
    if not tested.problem:
        return loaded
    return replace(
        loaded,
        fingerprint=with_facts(loaded.fingerprint, tested.found),
        notes=(tested.problem, *loaded.notes),
    )


def _require_form(checkpoint: Checkpoint, options: RuntimeOptions) -> None:
    """Raise SetupError for a quantised file and a form that floating-point weights would be held in."""
    is_quantised = any(tensor.type.name not in FLOATS for tensor in checkpoint.tensors.values())
    if options.weights in ("int8", "int4") and is_quantised:
        raise SetupError(
            f"The weights of {checkpoint.parameters.where} are quantised already, and are computed as they are: "
            f"--weights {options.weights} is for other files."
        )


def _load(
    checkpoint: Checkpoint, found: Architecture, options: RuntimeOptions, watch: FileWatch, progress: Progress
) -> LoadedModel:
    """Return the model, without its fingerprint."""
    threads = options.threads or compute_threads()
    is_exact = options.precision == "exact"
    all_layers, whole = with_prediction(found, checkpoint) if options.has_predictor else (found, checkpoint)
    weights = Weights(whole, form_for(options), "float32" if is_exact else FAST_ACTIVATIONS)
    names = list(dict.fromkeys([*matrix_names(found, weights), *matrix_names(all_layers, weights)]))
    read = [*names, *expert_names(all_layers)]
    context = options.context_within(found.context_length, checkpoint.paths[0].name)
    shapes = attention_shapes(all_layers, is_wide=is_exact)
    _require_room_for_tables(checkpoint)
    kernels, isa = _kernels(found, weights, read, shapes), host().isa
    code = load_code(*kernels.recipes(isa), notify=lambda: progress(COMPILING), others=self_test_recipes(isa))
    if code.was_compiled:
        progress("Loading the weights")
    memory = _Memory(whole, weights, names, all_layers, options, all_layers.num_layers - found.num_layers)
    panels = memory.panels(code, threads)
    weights.use(panels)
    experts = memory.experts(found.mixture, code, threads) if found.mixture else None
    places, own_bytes = _cache_places(found, shapes[: found.num_layers])
    predicting = PredictorLoader(all_layers, shapes[-1], context) if options.has_predictor else None
    block_bytes = own_bytes + (predicting.block_bytes if predicting else 0)
    state_places, state_bytes, log_bytes = _state_places(found)
    free = available_memory().free_bytes - memory.expert_bytes - (predicting.cache_bytes if predicting else 0)
    plan = plan_kv_cache(
        block_bytes, STEP_SHAPE.block_tokens, context, free, options.kv_memory, max_sequences=options.max_sequences,
        state_bytes=state_bytes, max_rows=options.max_rows,
    )  # fmt: skip
    # all layers of a block side by side: a short sequence touches few huge pages
    cache, states = Rows.exactly(plan.blocks, block_bytes), Rows.exactly(plan.states, state_bytes)
    log = Rows.exactly(LOG_ROWS, log_bytes)
    positions = Positions(found, plan.context_length)
    buffers = Buffers(all_layers, weights, MAX_ROWS)
    writer = TapeWriter(
        found, kernels, threads, buffers, positions,
        Cache(
            shapes, [cache.without(place) for place in places],
            {layer: Kept(states.without(own), log.without(logged)) for layer, (own, logged) in state_places.items()},
        ),
        ExpertRecords(all_layers, weights, experts, MAX_ROWS) if experts else None,
        predicting.allocate(buffers) if predicting else None,
    )  # fmt: skip
    tape, builder = writer.write(weights)
    longest = max(builder.longest_row, predicting.write(writer, weights) if predicting else 0)
    machine = Machine(
        code, tape.parts, panels, kernels, rows=MAX_ROWS, positions=plan.context_length, threads=threads,
        scratch_bytes=kernels.scratch_bytes(isa, longest), growth=TAPE_GROWTH, log_stride=log_bytes,
    )  # fmt: skip
    model = NativeModel(
        machine, tape, panels, experts, cache, states, positions, buffers, watch, context_length=plan.context_length,
        vocab_size=weights.matrix(weights.output_name()).rows, blocks=plan.blocks, keep=(builder, weights, whole),
    )  # fmt: skip
    adapters = NativeAdapters(checkpoint, weights, code, writer, model, options.cache_dir)
    grown = expansion_note(whole.tensor(f"{name}.weight") for name in dict.fromkeys(read))
    more = (_longer_note(checkpoint, found), *memory.notes, grown, _state_note(options, plan, state_bytes), code.remark)
    notes = (*plan.notes, *(each for each in more if each))
    predictor = predicting.predictor(model, cache, own_bytes) if predicting else None
    return LoadedModel(model, "", notes, adapters, predictor)


def attention_shapes(found: Architecture, *, is_wide: bool) -> list[AttentionShape]:
    """Return the shape of each layer's attention. Layers whose heads are alike have one, whether they have a window or
    not: kernels are compiled for each."""
    positions = Positions(found, 0)
    shapes = []
    for layer in range(found.num_layers):
        heads = found.heads_of(layer)
        has_window = bool(found.window_layers) if found.local_heads is None else layer in found.window_layers
        shapes.append(
            AttentionShape(
                heads.num_heads, heads.num_kv_heads, heads.head_size, positions.rotated(layer), is_wide=is_wide,
                has_window=has_window, has_sinks=found.has_sinks, has_cap=found.attention_cap is not None,
                own_value_size=heads.value_size if heads.value_size != heads.head_size else 0,
                has_common_part=found.latent is not None,
                has_chunks=has_window and found.has_chunks,
            )
        )  # fmt: skip
    return shapes


def _cache_places(found: Architecture, shapes: Sequence[AttentionShape]) -> tuple[list[int], int]:
    """Return where in a block the keys and values are that each layer attends to, or what its convolution reads, and
    the bytes of a block."""
    places: list[int] = []
    end = 0
    for layer, shape in enumerate(shapes):
        is_own = found.keys_of(layer) == layer
        places.append(end if is_own else places[found.keys_of(layer)])
        if is_own and (found.has_attention(layer) or layer in found.convolution_layers):
            end += shape.kept_bytes(found.hidden) if layer in found.convolution_layers else shape.block_bytes
    return places, max(end, _LINE)


def _state_places(found: Architecture) -> tuple[dict[int, tuple[int, int]], int, int]:
    """Return where in a sequence's state those of layers are, and their parts of a row of the log of drafts; the bytes
    of a state, and of such a row."""
    recurrent = found.delta or found.state_space
    if recurrent is None:
        return {}, 0, 0
    count = len(recurrent.layers)
    own = recurrent.state_bytes // count  # in whole lines: sizes of heads are multiples of 16
    logged = float_row_bytes(recurrent.numbers_taken_in)
    places = {layer: (index * own, index * logged) for index, layer in enumerate(sorted(recurrent.layers))}
    return places, recurrent.state_bytes, count * logged


def _norm_sizes(found: Architecture) -> list[int]:
    """Return the sizes of parts of a row that layers with a state normalise by themselves."""
    delta, space = found.delta, found.state_space
    of_groups = space.inner // space.norm_groups if space is not None and space.norm_groups > 1 else 0
    return [delta.value_size if delta is not None else 0, of_groups]


def _state_note(options: RuntimeOptions, plan: KVPlan, size: int) -> str:
    """Return a sentence on the memory of states, "" where there are none, and for a draft model, which has few."""
    if not size or options.draft_context is not None:
        return ""
    return (
        f"In addition to keys and values, each sequence has a state of {mib(size)}, of which {plan.states} fit into "
        "--kv-memory: so many sequences and beginnings of prompts together."
    )


def _kernels(found: Architecture, weights: Weights, names: Sequence[str], shapes: Sequence[AttentionShape]) -> Kernels:
    """Return the kernels that a model needs, and adapters of it. `names`: of its matrices."""
    kinds = {ProductKind(weights.type_of(name), weights.activations(name)) for name in names}
    kinds.add(ProductKind(ADAPTER_TYPE, "float32"))
    tables = [name for name in TABLES if weights.has(f"{name}.weight")]
    return Kernels(
        tuple(sorted(kinds, key=lambda kind: kind.name)),
        tuple(sorted({ADAPTER_TYPE, *(weights.table(name).type for name in tables)})),
        tuple(dict.fromkeys(shapes)),
        tuple({found.layer_input, *_norm_sizes(found)} - {0}),
        has_experts=found.mixture is not None,
        has_caps=found.logit_cap is not None or found.altup is not None or found.projection_limit is not None,
        has_altup=found.altup is not None,
        has_sparse_gates=any(cutoff is not None for cutoff in found.gate_cutoffs),
        has_convolutions=bool(found.convolution_layers),
        delta=DeltaShape(found.delta.key_size, found.delta.value_size) if found.delta else None,
        has_state_spaces=found.state_space is not None,
    )


def _require_room_for_tables(checkpoint: Checkpoint) -> None:
    """Raise MemoryTooSmall for embeddings of types whose rows no kernel looks up, and for which, as float32, there is
    no room."""
    found = [tensor for name in TABLES if (tensor := checkpoint.tensors.get(f"{name}.weight")) is not None]
    grown = [tensor for tensor in found if tensor.type.name in EXPANDED_TYPES or tensor.scales is not None]
    size = sum(4 * tensor.num_rows * tensor.shape[-1] for tensor in grown)
    if size and size > (free := available_memory().free_bytes):
        names = ", ".join(sorted({tensor.type.name for tensor in grown}))
        raise MemoryTooSmall(
            f"The embeddings of {checkpoint.parameters.where} are of type {names}, and take {mib(size)} of memory as "
            f"float32, but {mib(free)} are free: {_ADVICE}"
        )


def _longer_note(checkpoint: Checkpoint, found: Architecture) -> str:
    """Return a sentence on the tokens that a model takes with other positions than it is loaded with, "" if none."""
    stated, longest = found.context_length, checkpoint.parameters.integer("context_length", minimum=1)
    if longest <= stated:
        return ""
    return (
        f"The context is the {stated} tokens of the model's first training. It takes up to {longest} with the "
        f"positions of its second one, if --context-length asks for more than {stated}."
    )


class _Memory:
    """Divides what is free among the weights that every step uses and the experts, of which it uses some."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: Weights,
        names: Sequence[str],
        found: Architecture,
        options: RuntimeOptions,
        num_drafting: int,
    ) -> None:
        """`names`: of matrices that are not experts'; `num_drafting`: layers, the last ones, that only draft. Raises
        MemoryTooSmall if everything `must_fit` and does not."""
        groups, layers = weights.groups(names), weights.expert_layers(found)
        self._groups, self._layers, self._num_drafting = groups, layers, num_drafting
        self._where = checkpoint.parameters.where
        self._free, self._always = available_memory().free_bytes, sum(map(bytes_of, groups))
        self._all_experts = total_bytes(layers)
        fits = self._always + self._all_experts <= self._free
        if options.must_fit and not fits:
            raise MemoryTooSmall(f"{self._takes('The weights', self._always + self._all_experts)}: {_ADVICE}")
        # the KV cache needs memory, too
        self._budget = self._always + self._all_experts if fits else self._free * 3 // 4
        self.expert_bytes = 0
        """What experts may take, as steps use them."""
        self.notes: list[str] = []

    def _takes(self, what: str, size: int) -> str:
        return f"{what} of {self._where} take {mib(size)} of memory, but {mib(self._free)} are free"

    def panels(self, code: Code, threads: int) -> PanelCache:
        """Return the panels of all matrices but experts'. Raises MemoryTooSmall."""
        takes = self._takes("The weights", self._always + self._all_experts)
        budget = min(self._budget, self._always + self._all_experts) - least_bytes(self._layers)
        cache = PanelCache(self._groups, code, threads, budget, f"{takes}: {_ADVICE}", self._num_drafting)
        if cache.streamed_bytes:
            drafts = f", and drafts {mib(cache.drafting_bytes)} more" if cache.drafting_bytes else ""
            self.notes.append(
                f"{takes}: every step reads {mib(cache.streamed_bytes)} of them from the file{drafts}, which is slow; "
                f"{_ADVICE}"
            )
        return cache

    def experts(self, mixture: Mixture, code: Code, threads: int) -> ExpertCache:
        """Return the cache of experts, in which none is yet. Raises MemoryTooSmall."""
        takes = self._takes("The experts", self._all_experts)
        self.expert_bytes = max(least_bytes(self._layers), self._budget - self._always)
        routing = Routing(MAX_ROWS, mixture.count, mixture.used)
        cache = ExpertCache(self._layers, routing, code, threads, self.expert_bytes, f"{takes}: {_ADVICE}")
        if cache.missing_bytes:
            self.notes.append(
                f"{takes}: those that steps use most stay in memory, the others are read from the file whenever a step "
                f"uses them, which is slow; {_ADVICE}"
            )
        return cache
