"""Model files as IR folders: each is converted once, and kept in the cache for the next start."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from onward.checkpoints.adapter import merged
from onward.checkpoints.checkpoint import Checkpoint, read_checkpoint
from onward.errors import CheckpointError, SetupError
from onward.runtimes.base import Progress
from onward.runtimes.files import CONFIG
from onward.runtimes.openvino.conversion_cache import FOLDER, PART, is_complete, mark_used, remove_old_parts, shrink
from onward.runtimes.openvino.file_names import GRAPH, LONGEST_CONTEXT
from onward.runtimes.openvino.fingerprint import content_digests
from onward.runtimes.openvino.graphs.architecture import Architecture
from onward.runtimes.openvino.graphs.decoder import build_decoder
from onward.runtimes.openvino.graphs.table import architecture_of, has_long_positions
from onward.runtimes.openvino.graphs.weights import Weights, graph_bytes
from onward.runtimes.openvino.library import ov
from onward.runtimes.openvino.shared_weights import can_share, share_weights
from onward.runtimes.options import RuntimeOptions

REVISION = 3
"""Raised with every change that may change a converted graph."""
_SPARE_BYTES = 64_000_000
"""What has to be free on the disk besides the graph."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A model file's IR folder. `content` identifies what the file contains and how it was converted."""

    folder: Path
    content: str


@contextmanager
def converted(path: Path, options: RuntimeOptions, progress: Progress) -> Iterator[Converted]:
    """Convert a model file, unless that was done before, and give the folder to load for as long as the context lasts.

    Without a cache folder in the options, the folder is a temporary one.
    Slow; blocks. Raises CheckpointError (the file), SetupError (the disk).
    """
    with ExitStack() as temporary:
        # Nothing that the file was read into may live while the result is loaded: it would be in memory twice.
        yield _converted(path, options, progress, temporary)


def _converted(path: Path, options: RuntimeOptions, progress: Progress, temporary: ExitStack) -> Converted:
    """See `converted`; `temporary` removes a folder that is not in the cache."""
    checkpoint, found = _checked(read_checkpoint(path), options)
    content = _content(checkpoint, options)
    name = f"{(path.name if path.is_dir() else path.stem)[:80]}-{content[:16]}"
    cached = None if options.cache_dir is None else options.cache_dir / FOLDER / name
    if cached is not None and is_complete(cached):
        mark_used(cached)
        return Converted(cached, content)
    base = None
    if options.adapter is not None and cached is not None and can_share():
        base = _converted(path, replace(options, adapter=None), progress, temporary).folder
    progress(f"Converting {path.name} for this machine (once)")
    root = cached.parent if cached is not None else Path(tempfile.gettempdir())
    fresh = temporary.enter_context(_new_folder(root))
    _require_space(fresh, graph_bytes(checkpoint, options.precision, options.weights))
    _write(checkpoint, found, fresh, options)
    _require_unchanged(checkpoint, options, content)
    if base is not None:
        _share(fresh, base)
    folder = fresh if cached is None else _keep(fresh, cached)
    if options.cache_dir is not None and options.cache_size is not None:
        for old in shrink(options.cache_dir, options.cache_size, kept=[folder]):
            progress(f"Removed the converted model {old.name} from the cache (--cache-size)")
    return Converted(folder, content)


def write_ir(path: Path, folder: Path, files: Mapping[str, bytes], options: RuntimeOptions) -> None:
    """Write a model file as an IR folder with further `files`: all of it, or nothing. `folder` must not exist.

    Slow; blocks. Raises CheckpointError (the file), SetupError (the disk).
    """
    checkpoint, found = _checked(read_checkpoint(path), options)
    content = _content(checkpoint, options)
    with _new_folder(folder.absolute().parent) as fresh:
        _require_space(fresh, graph_bytes(checkpoint, options.precision, options.weights))
        _write(checkpoint, found, fresh, options)
        for name, contained in files.items():
            (fresh / name).write_bytes(contained)
        _require_unchanged(checkpoint, options, content)
        fresh.chmod(0o755)
        try:
            fresh.rename(folder)
        except OSError as error:
            reason = f"{folder} cannot be written ({error.strerror})"
            raise SetupError(f"{reason}: choose a folder that does not exist.") from None


def _checked(checkpoint: Checkpoint, options: RuntimeOptions) -> tuple[Checkpoint, Architecture]:
    """Return a checkpoint, with its adapter, and its architecture. Raises CheckpointError, SetupError."""
    _require_possible(options)
    if options.adapter is not None:
        checkpoint = merged(checkpoint, options.adapter)
    return checkpoint, architecture_of(checkpoint, options.context_length)


def _require_possible(options: RuntimeOptions) -> None:
    if options.precision == "exact" and options.weights in ("int8", "int4"):
        raise SetupError(
            f"--precision exact keeps weights as they are, and --weights {options.weights} changes them: leave out one."
        )


def _content(checkpoint: Checkpoint, options: RuntimeOptions) -> str:
    """Return a digest of the files' contents, the revision of the conversion, and the options that change it."""
    digests = content_digests(checkpoint.paths, options.cache_dir)
    facts = [str(REVISION), options.precision, options.weights]
    if has_long_positions(checkpoint, options.context_length):
        facts.append("long positions")
    return hashlib.sha256("\0".join([*digests, *facts]).encode()).hexdigest()


@contextmanager
def _new_folder(root: Path) -> Iterator[Path]:
    """Make a folder that is removed at the end, unless it was moved away. Raises SetupError."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        remove_old_parts(root)
        fresh = Path(tempfile.mkdtemp(prefix=PART, dir=root))
    except OSError as error:
        raise SetupError(f"{root} cannot be written ({error.strerror}): set --cache-dir to another folder.") from None
    try:
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _require_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _SPARE_BYTES:
        raise SetupError(
            f"{folder.parent} has {free / 1e9:.1f} GB of free space, but the converted model needs "
            f"{num_bytes / 1e9:.1f}: free some, or set --cache-dir to another folder."
        )


def _write(checkpoint: Checkpoint, found: Architecture, folder: Path, options: RuntimeOptions) -> None:
    weights = Weights(checkpoint, options.precision, options.weights)
    graph = build_decoder(found, weights)
    try:
        ov.save_model(graph, folder / GRAPH, compress_to_fp16=False)
    except RuntimeError as error:
        raise SetupError(f"The converted model could not be written to {folder.parent} ({error}).") from None
    configuration = {"model_type": found.name, "max_position_embeddings": found.context_length}
    if (longest := checkpoint.parameters.integer("context_length", minimum=1)) > found.context_length:
        configuration[LONGEST_CONTEXT] = longest
    (folder / CONFIG).write_text(json.dumps(configuration), encoding="utf-8")


def _share(fresh: Path, base: Path) -> None:
    """Leave out of a conversion what that of its base has. Raises SetupError."""
    try:
        share_weights(fresh, base)
    except OSError as error:
        raise SetupError(f"The converted model could not be written to {fresh.parent} ({error.strerror}).") from None


def _require_unchanged(checkpoint: Checkpoint, options: RuntimeOptions, content: str) -> None:
    if _content(checkpoint, options) != content:
        raise CheckpointError(f"{checkpoint.paths[0]} was changed while it was read: start again.")


def _keep(fresh: Path, cached: Path) -> Path:
    """Move a complete folder to its place, or drop it if another process was faster. Returns the folder to use."""
    try:
        fresh.rename(cached)
    except OSError:
        if not is_complete(cached):
            return fresh
    return cached
