"""Model files as IR folders: each is converted once, and kept in the cache for the next start."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from onward.checkpoints.adapter import merged
from onward.checkpoints.architecture import Architecture
from onward.checkpoints.architectures import architecture_of, has_long_positions
from onward.checkpoints.checkpoint import Checkpoint, read_checkpoint
from onward.errors import CheckpointError, SetupError
from onward.residency import trim_heap
from onward.runtimes.base import Progress
from onward.runtimes.files import CONFIG
from onward.runtimes.fingerprint import content_digests, remember_digests
from onward.runtimes.openvino.conversion_cache import (
    FOLDER,
    PART,
    locked,
    mark_used,
    remove_folder,
    remove_parts,
    shrink,
    stated_digests,
    write_manifest,
)
from onward.runtimes.openvino.file_names import GRAPH, LONGEST_CONTEXT, SHARED, WEIGHTS
from onward.runtimes.openvino.graphs.decoder import build_decoder
from onward.runtimes.openvino.graphs.weights import Weights, graph_bytes
from onward.runtimes.openvino.graphs.weights_file import WeightsFile
from onward.runtimes.openvino.shared_weights import can_share, share_weights
from onward.runtimes.openvino.weights import state_float32
from onward.runtimes.options import RuntimeOptions
from onward.runtimes.percentage import Percentage

REVISION = 7
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
    checkpoint, found = _checked(path, options)
    content = _content(checkpoint, options)
    convert = partial(_convert, path, checkpoint, found, content, options, progress)
    name = f"{(path.name if path.is_dir() else path.stem)[:80]}-{content[:16]}"
    if options.cache_dir is None:
        fresh = temporary.enter_context(_new_folder(Path(tempfile.gettempdir()), name))
        convert(fresh)
        return Converted(fresh, content)
    cached = options.cache_dir / FOLDER / name
    if _is_intact(cached, options, progress):
        mark_used(cached)
        return Converted(cached, content)
    base = None
    if options.adapter is not None and can_share():
        base = _converted(path, replace(options, adapter=None), progress, temporary).folder
    with _lock(options.cache_dir, name, progress):
        folder = cached
        if not _is_intact(cached, options, progress):  # another process may have converted it meanwhile
            fresh = temporary.enter_context(_new_folder(cached.parent, name))
            written = convert(fresh)
            if base is not None:
                written = _share(fresh, base, options)
            folder = _keep(fresh, cached, written, options)
    if options.cache_size is not None:
        for old in shrink(options.cache_dir, options.cache_size, kept=[folder]):
            progress(f"Removed the converted model {old.name} from the cache (--cache-size)")
    return Converted(folder, content)


def _is_intact(cached: Path, options: RuntimeOptions, progress: Progress) -> bool:
    """Return whether a folder of the cache is a converted model as it was written. One that is not is removed, which
    fails where it may not be written to."""
    stated = stated_digests(cached)
    with suppress(OSError):
        if stated is not None and content_digests(stated, options.cache_dir) == list(stated.values()):
            return True
        if cached.exists():
            progress(f"The converted model {cached.name} in the cache is damaged: it is converted again")
            remove_folder(cached)
    return False


def _convert(
    path: Path,
    checkpoint: Checkpoint,
    found: Architecture,
    content: str,
    options: RuntimeOptions,
    progress: Progress,
    fresh: Path,
) -> dict[str, str]:
    """Convert a model file into a new folder. Returns the SHA-256 by name of what was written."""
    what = f"Converting {path.name}"
    progress(what if options.cache_dir is None else f"{what} for this machine (once)")
    total = graph_bytes(checkpoint, options.precision, options.weights)
    _require_space(fresh, total)
    written = _write(checkpoint, found, fresh, options, Percentage(what, total, progress).advance)
    _require_unchanged(checkpoint, options, content)
    trim_heap()
    return written


def write_ir(path: Path, folder: Path, files: Mapping[str, bytes], options: RuntimeOptions, progress: Progress) -> None:
    """Write a model file as an IR folder with further `files`: all of it, or nothing. `folder` must not exist.

    Slow; blocks. Raises CheckpointError (the file), SetupError (the disk).
    """
    checkpoint, found = _checked(path, options)
    content = _content(checkpoint, options)
    with _new_folder(folder.absolute().parent, folder.name) as fresh:
        _convert(path, checkpoint, found, content, options, progress, fresh)
        for name, contained in files.items():
            (fresh / name).write_bytes(contained)
        fresh.chmod(0o755)
        try:
            fresh.rename(folder)
        except OSError as error:
            reason = f"{folder} cannot be written ({error.strerror})"
            raise SetupError(f"{reason}: choose a folder that does not exist.") from None


def _checked(path: Path, options: RuntimeOptions) -> tuple[Checkpoint, Architecture]:
    """Return the checkpoint at a path, with its adapter, and its architecture. Raises CheckpointError, SetupError."""
    options.require_possible()
    checkpoint = read_checkpoint(path)
    if options.adapter is not None:
        checkpoint = merged(checkpoint, options.adapter)
    return checkpoint, architecture_of(checkpoint, options.context_length)


def _content(checkpoint: Checkpoint, options: RuntimeOptions) -> str:
    """Return a digest of the files' contents, the revision of the conversion, and the options that change it."""
    facts = [str(REVISION), options.precision, options.weights]
    if has_long_positions(checkpoint, options.context_length):
        facts.append("long positions")
    try:
        digests = content_digests(checkpoint.paths, options.cache_dir)
    except OSError as error:
        raise CheckpointError(f"{error.filename} cannot be read ({error.strerror}).") from None
    return hashlib.sha256("\0".join([*digests, *facts]).encode()).hexdigest()


@contextmanager
def _lock(cache_dir: Path, name: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of a conversion, and remove what killed processes left of it. Raises SetupError."""
    with ExitStack() as held:
        try:
            held.enter_context(locked(cache_dir, name, progress))
        except OSError as error:
            raise _not_writable(cache_dir, error) from None
        remove_parts(cache_dir / FOLDER, name)
        yield


@contextmanager
def _new_folder(root: Path, name: str) -> Iterator[Path]:
    """Make a folder that is removed at the end, unless it was moved away. Raises SetupError."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{PART}{name}-", dir=root))
    except OSError as error:
        raise _not_writable(root, error) from None
    try:
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _not_writable(folder: Path, error: OSError) -> SetupError:
    return SetupError(f"{folder} cannot be written ({error.strerror}): set --cache-dir to another folder.")


def _require_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes + _SPARE_BYTES:
        raise SetupError(
            f"{folder.parent} has {free / 1e6:,.0f} MB of free space, but the converted model needs "
            f"{num_bytes / 1e6:,.0f}: free some, or set --cache-dir to another folder."
        )


def _write(
    checkpoint: Checkpoint,
    found: Architecture,
    folder: Path,
    options: RuntimeOptions,
    advance: Callable[[int], None],
) -> dict[str, str]:
    """Write the files of a converted model, and return the SHA-256 of each by name. `advance` receives how many bytes
    were added to the graph's weights."""
    try:
        with WeightsFile(folder / WEIGHTS, advance) as file:
            graph = build_decoder(found, Weights(checkpoint, options.precision, options.weights, file=file))
            state_float32(graph)
            written = {WEIGHTS: file.write_graph(graph, folder / GRAPH)}
        configuration = {"model_type": found.name, "max_position_embeddings": found.context_length}
        if (longest := checkpoint.parameters.integer("context_length", minimum=1)) > found.context_length:
            configuration[LONGEST_CONTEXT] = longest
        (folder / CONFIG).write_text(json.dumps(configuration), encoding="utf-8")
    except OSError as error:
        reason = error.strerror or error
        raise SetupError(f"The converted model could not be written to {folder.parent} ({reason}).") from None
    names = (GRAPH, CONFIG)
    return written | dict(zip(names, content_digests([folder / name for name in names], None), strict=True))


def _share(fresh: Path, base: Path, options: RuntimeOptions) -> dict[str, str]:
    """Leave out of a conversion what that of its base has. Returns the SHA-256 of each file by name. Raises
    SetupError."""
    try:
        share_weights(fresh, base)
        names = (GRAPH, WEIGHTS, CONFIG)
        written = dict(zip(names, content_digests([fresh / name for name in names], None), strict=True))
        if (fresh / SHARED).exists():
            [written[SHARED]] = content_digests([base / WEIGHTS], options.cache_dir)
    except OSError as error:
        raise SetupError(f"The converted model could not be written to {fresh.parent} ({error.strerror}).") from None
    return written


def _require_unchanged(checkpoint: Checkpoint, options: RuntimeOptions, content: str) -> None:
    if _content(checkpoint, options) != content:
        raise CheckpointError(f"{checkpoint.paths[0]} was changed while it was read: start again.")


def _keep(fresh: Path, cached: Path, written: Mapping[str, str], options: RuntimeOptions) -> Path:
    """Move a complete folder to its place, unless something is there that could not be removed. `written`: the digests
    of its files. Returns the folder to use."""
    try:
        write_manifest(fresh, written)
        fresh.rename(cached)
    except OSError:
        return fresh
    with suppress(OSError):
        remember_digests({cached / name: digest for name, digest in written.items()}, options.cache_dir)
    return cached
