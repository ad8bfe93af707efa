"""What results depend on, in one short string: weights, graph, OpenVINO, processor, precision."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

_CHUNK = 1 << 22
_INDEX = "hashes.json"


def fingerprint(files: Iterable[Path], facts: Iterable[str], cache_dir: Path | None) -> str:
    """`fp_` and ten hex digits, another for any other content of `files` or any other `facts`.

    Hashes whole files; with `cache_dir`, a file of known path, size and time is not read again.
    """
    index = _read_index(cache_dir)
    whole = hashlib.sha256()
    known = dict(index)
    for file in files:
        status = file.stat()
        key = f"{file.resolve()}:{status.st_size}:{status.st_mtime_ns}"
        known[key] = index.get(key) or _hash(file)
        whole.update(known[key].encode())
    for fact in facts:
        whole.update(fact.encode() + b"\0")
    if cache_dir is not None and known != index:
        _write_index(cache_dir, known)
    return f"fp_{whole.hexdigest()[:10]}"


def _hash(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read_index(cache_dir: Path | None) -> dict[str, str]:
    if cache_dir is None:
        return {}
    try:
        found = json.loads((cache_dir / _INDEX).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write_index(cache_dir: Path, index: dict[str, str]) -> None:
    """Best effort: a cache that cannot be written costs time, not correctness."""
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        fresh = cache_dir / f"{_INDEX}.new"
        fresh.write_text(json.dumps(index))
        fresh.replace(cache_dir / _INDEX)
    except OSError:
        return
