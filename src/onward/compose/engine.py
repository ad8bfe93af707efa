"""Loads a model and makes its engine, in whichever process that runs.

Heavy packages are imported here, late and concurrently: the kernels of the sampler are loaded, or compiled, in a
thread, while this one loads a model.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from onward.errors import SetupError
from onward.model_files import formats
from onward.model_files.base import ModelFiles, Progress
from onward.private_files import private_folder
from onward.residency import drop_file_pages
from onward.runtimes import table
from onward.runtimes.base import LoadedModel, RuntimeOptions

log = logging.getLogger("onward.engine")

if TYPE_CHECKING:
    from onward.engine.client import EngineInfo
    from onward.engine.constraints import LoadTokenizer
    from onward.engine.model import Tokenizer, Vocabulary
    from onward.engine.step import Engine
    from onward.kernels.self_test_result import SelfTest
    from onward.models.resolve import ResolvedModel
    from onward.settings import Settings

SAMPLING_REVISION = 4
"""Raised with every change of `sampling` that may change a sampled token or a reported log-probability."""

_LOADING_ONLY_FILES = ("libllvmlite.", "libcrypto.")
"""Name prefixes of mapped files that serving hardly reads, in addition to those of the models' formats and runtimes:
LLVM has compiled the kernels. Pages that are needed again are read again."""

COMPILING = "Compiling the sampling kernels (once; about a second)"


class DraftModelConfig(msgspec.Struct, frozen=True):
    """The draft model of an engine. `is_predictor`: it is the model itself, of which layers that predict several tokens
    at once draft."""

    model_id: str
    format: str
    path: str
    is_predictor: bool = False

    @classmethod
    def create(cls, found: ResolvedModel | None) -> DraftModelConfig | None:
        if found is None:
            return None
        return cls(found.id, found.files.format, str(found.path.absolute()), found.is_predictor)

    def files(self) -> ModelFiles:
        """Return the files of the model."""
        return formats.format_named(self.format)(Path(self.path))


class EngineConfig(msgspec.Struct, frozen=True):
    """Which model to load and how to run its engine: all that an engine's process needs to know."""

    model_id: str
    format: str
    path: str
    options: RuntimeOptions
    share_prefixes: bool
    speculate: bool
    prefix_cache_dir: Path | None = None
    prefix_cache_disk: int = 0
    draft: DraftModelConfig | None = None

    @classmethod
    def create(cls, found: ResolvedModel, settings: Settings, *, must_fit: bool = False) -> EngineConfig:
        """Return the configuration of the engine for a model. `must_fit`: see RuntimeOptions. Raises SetupError for a
        folder of the prefix cache that cannot be used."""
        options = RuntimeOptions(
            runtime=settings.runtime,
            threads=settings.threads,
            precision=settings.precision,
            weights=settings.weights,
            kv_memory=settings.kv_memory,
            cache_dir=settings.cache_dir,
            context_length=settings.context_length or None,
            must_fit=must_fit,
            max_rows=settings.max_rows,
            has_predictor=found.draft is not None and found.draft.is_predictor,
        )
        return cls(
            model_id=found.id,
            format=found.files.format,
            path=str(found.path.absolute()),
            options=options,
            share_prefixes=settings.prefix_cache,
            speculate=settings.speculation == "auto",
            prefix_cache_dir=None if settings.prefix_cache_dir is None else _usable_folder(settings.prefix_cache_dir),
            prefix_cache_disk=settings.prefix_cache_disk,
            draft=DraftModelConfig.create(found.draft),
        )

    def files(self) -> ModelFiles:
        """Return the files of the model."""
        return formats.format_named(self.format)(Path(self.path))

    def all_files(self) -> list[ModelFiles]:
        """Return the files of the model, and of the one that drafts for it."""
        return [self.files()] if self.draft is None else [self.files(), self.draft.files()]

    def encode(self) -> bytes:
        """Return this configuration for another process."""
        return msgspec.json.encode(self, enc_hook=str)

    @classmethod
    def decode(cls, payload: bytes) -> EngineConfig:
        """Return what `encode` encoded. Raises msgspec.MsgspecError for anything else."""
        return msgspec.json.decode(payload, type=cls, dec_hook=lambda kind, value: kind(value))


@contextmanager
def kernels_loading(progress: Progress) -> Iterator[Callable[[], None]]:
    """Load the sampling kernels, and then import what `make_engine` needs, on a thread; yield a function that waits for
    the kernels."""
    with ThreadPoolExecutor(1, thread_name_prefix="onward-kernels") as executor:
        kernels = executor.submit(_load_kernels, progress)
        executor.submit(import_module, "onward.engine.step")
        yield kernels.result


class LoadedModels(NamedTuple):
    """A model in memory, and the one that drafts for it. Whoever owns them closes them."""

    model: LoadedModel
    draft: LoadedModel | None

    def close(self) -> None:
        for each in (self.model, self.draft):
            if each is not None:
                each.model.close()


def load_models(config: EngineConfig, progress: Progress) -> LoadedModels:
    """Load the model of a configuration, and the one that drafts for it. Raises SetupError."""
    model = _load(config.files(), config.options, progress)
    if note := _rows_note(config, model.model.shape.states):
        progress(note)
    try:
        return LoadedModels(model, _load_draft(config, model, progress))
    except BaseException:
        model.model.close()
        raise


def _load(files: ModelFiles, options: RuntimeOptions, progress: Progress) -> LoadedModel:
    loaded = table.load_model(files, options, progress)
    for note in loaded.notes:
        progress(note)
    return loaded


def _rows_note(config: EngineConfig, num_states: int) -> str:
    """Return a sentence if fewer sequences have states than --max-rows asks for, else ""."""
    from onward.engine.states import max_sequences

    most, wanted = max_sequences(num_states, has_snapshots=config.share_prefixes), config.options.max_rows
    if not num_states or most >= wanted:
        return ""
    kept = "" if most == num_states else f", of which {num_states - most} are kept for shared prefixes"
    return (
        f"At most {most} sequences are computed together, fewer than the {wanted} of --max-rows: {num_states} states "
        f"fit into --kv-memory{kept}. Raise it for more."
    )


def _load_draft(config: EngineConfig, model: LoadedModel, progress: Progress) -> LoadedModel | None:
    draft = config.draft
    if draft is None:
        return None
    if draft.is_predictor:
        if model.predictor is None:
            raise SetupError(
                f"--draft mtp is for GGUF and safetensors models with layers that predict several tokens at once, and "
                f"{config.model_id} is {config.format}: leave it out."
            )
        return LoadedModel(model.predictor, model.fingerprint)
    progress(f"Loading {draft.model_id}, which drafts for {config.model_id}")
    if draft.files().bytes_per_token() > config.files().bytes_per_token():
        progress(
            f"{draft.model_id} reads more bytes per token than {config.model_id}, so its drafts save no time: choose a "
            "smaller model of the same family for --draft."
        )
    options = RuntimeOptions(
        threads=config.options.threads,
        cache_dir=config.options.cache_dir,
        must_fit=config.options.must_fit,
        draft_context=model.model.context_length,
        max_rows=1,
    )
    return _load(draft.files(), options, progress)


def make_engine(
    config: EngineConfig, models: LoadedModels, vocabulary: Vocabulary, load_tokenizer: LoadTokenizer | None = None
) -> tuple[Engine, EngineInfo]:
    """Return an engine, which owns the models from now on, and what it serves. `vocabulary`: the model's.

    `load_tokenizer` is called for the first grammar; by default it reads the model's files again, in a process of the
    engine's own, where grammars may be used. With one, they are used in a disposable process.
    """
    from onward.engine.client import EngineInfo
    from onward.engine.step import Engine
    from onward.sampling.sampler import Sampler

    model, draft = models
    fingerprint = _fingerprint(model.fingerprint)
    engine = Engine(
        model.model,
        vocabulary,
        Sampler(model.model.vocab_size, config.options.threads or None),
        max_rows=config.options.max_rows,
        share_prefixes=config.share_prefixes,
        speculate=config.speculate,
        draft_model=None if draft is None else draft.model,
        load_tokenizer=load_tokenizer or partial(_load_tokenizer, config),
        in_disposable_process=load_tokenizer is not None,
    )
    if config.prefix_cache_dir is not None:
        # blocks of a model with a predictor contain more
        identity = fingerprint if model.predictor is None else f"{fingerprint}-mtp"
        _keep_prefixes(engine, config.prefix_cache_dir, config.prefix_cache_disk, identity)
    engine.adapters = model.adapters
    max_rows = engine.scheduler.rows.max_rows
    info = EngineInfo(model.model.vocab_size, model.model.context_length, max_rows, fingerprint)
    return engine, info


def _usable_folder(folder: Path) -> Path:
    """Return the absolute path of a folder for a prefix cache, which is made if need be. Raises SetupError."""
    try:
        with private_folder(folder.absolute()) as opened:
            return opened.path
    except OSError as problem:
        raise SetupError(
            f"--prefix-cache-dir {folder} cannot be used: {problem.strerror or problem}. Prompts can be read from its "
            "files, so it has to be a folder of this user's own that nobody else may use."
        ) from None


def kept_prefixes(folder: Path) -> tuple[int, int]:
    """Return how many files of blocks and states a folder of --prefix-cache-dir has, and their bytes. Raises
    SetupError."""
    from onward.engine.block_files import usage

    return usage(_usable_folder(folder))


def forget_prefixes(folder: Path) -> None:
    """Remove all blocks of a folder of --prefix-cache-dir, and keep servers from writing those that they have. Raises
    SetupError."""
    from onward.engine.block_files import forget

    try:
        forget(folder.absolute())
    except OSError as problem:
        raise SetupError(
            f"The prefix cache in {folder} could not be removed: {problem.strerror or problem}. Prompts may still lie "
            "there: remove the folder."
        ) from None


def _keep_prefixes(engine: Engine, folder: Path, max_bytes: int, identity: str) -> None:
    """Have an engine keep its prefix cache in a folder, of which it reads blocks of the same `identity`. Where that
    cannot be used any more, it is kept in memory only: an engine that is started again must not fail because of it."""
    from onward.engine.block_files import BlockFiles
    from onward.engine.disk_cache import DiskCache

    try:
        files = BlockFiles(folder, max_bytes, sum(part.nbytes for part in engine.model.block_memory(0)))
    except OSError as problem:
        log.warning("the prefix cache in %s cannot be used: %s", folder, problem.strerror or problem)
        return
    engine.disk = DiskCache(files, identity, engine.cache, engine.model)


def _load_tokenizer(config: EngineConfig) -> Tokenizer:
    """Load only the tokenizer of a configuration's model. Raises SetupError."""
    return config.files().load_tokenizer(config.options.cache_dir)


def drop_loading_pages(models: Iterable[ModelFiles]) -> None:
    """Drop the pages of files that only loading these needed. No engine may run yet: one that ends would unmap its
    model."""
    names = {name for each in models for name in (*each.loading_only_files, *table.runtime_of(each).loading_only_files)}
    drop_file_pages(*_LOADING_ONLY_FILES, *names)


def computed_by(found: ResolvedModel) -> dict[str, str]:
    """Return what computes a model by default, and why, for `onward models show`."""
    runtime = table.runtime_of(found.files)
    return {"runtime": runtime.name, "runtime_reason": runtime.reason}


def required_packages() -> list[str]:
    """Return the Python distributions that models of all formats need, each once."""
    wanted = [*(each.packages for each in formats.FORMATS), *(each.packages for each in table.RUNTIMES)]
    return list(dict.fromkeys(chain.from_iterable(wanted)))


def _load_kernels(progress: Progress) -> None:
    from onward.sampling.kernels import load_kernels

    load_kernels(lambda: progress(COMPILING))
    if problem := _tested_sampling().problem:
        progress(problem)


@cache
def _tested_sampling() -> SelfTest:
    from onward.sampling.self_test import run_self_test

    return run_self_test()


def _fingerprint(runtime: str) -> str:
    """Return `system_fingerprint`: it changes with what the runtime's results depend on and with the sampler, and with
    the processor only if that samples other tokens than it should."""
    tested = _tested_sampling()
    sampling = f"{SAMPLING_REVISION} {tested.found}" if tested.problem else str(SAMPLING_REVISION)
    return "fp_" + hashlib.blake2b(f"{runtime} {sampling}".encode(), digest_size=6).hexdigest()
