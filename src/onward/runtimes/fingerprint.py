"""What results depend on, in one short string: weights, what computes them, precision."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from onward.runtimes.index import read_index, write_index

_CHUNK = 1 << 22


def fingerprint(files: Iterable[Path], facts: Iterable[str], cache_dir: Path | None) -> str:
    """Return `fp_` and ten hex digits that change with the content of `files` and with `facts`. Raises OSError."""
    whole = hashlib.sha256()
    for digest in content_digests(files, cache_dir):
        whole.update(digest.encode())
    for fact in facts:
        whole.update(fact.encode() + b"\0")
    return f"fp_{whole.hexdigest()[:10]}"


def adapter_id(files: Iterable[Path], cache_dir: Path | None) -> str:
    """Return 16 hex digits that change with the content of an adapter's files. Raises OSError."""
    return hashlib.sha256(" ".join(content_digests(files, cache_dir)).encode()).hexdigest()[:16]


def content_digests(files: Iterable[Path], cache_dir: Path | None) -> list[str]:
    """Return the SHA-256 of each file, in hexadecimal.

    Hashes whole files; with `cache_dir`, a file whose path, size and modification time are known is not read again.
    Raises OSError.
    """
    index = read_index(cache_dir)
    keys = {file: _key(file) for file in files}
    found = {key: index.get(key) or _hash(file) for file, key in keys.items()}
    if not found.items() <= index.items():
        write_index(cache_dir, index | found)
    return [found[key] for key in keys.values()]


def _key(file: Path) -> str:
    status = file.stat()
    return f"{file.resolve()}:{status.st_size}:{status.st_mtime_ns}"


def with_facts(identity: str, *facts: object) -> str:
    """Return a fingerprint that changes with `identity` and with facts that were found out after it was computed."""
    return f"fp_{hashlib.sha256(' '.join([identity, *map(str, facts)]).encode()).hexdigest()[:10]}"


def _hash(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
