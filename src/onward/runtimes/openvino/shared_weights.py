"""Converted models of one base share the file of its weights.

A LoRA adapter changes some layers, so most of the constants in the conversion of base and adapter are those of the
base's own conversion. These are left out; the graph refers to the base's file instead, of which the folder has a hard
link. So nothing is lost when the base's conversion is removed, and disk and page cache have the bytes once.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from onward.runtimes.openvino.file_names import GRAPH, SHARED, WEIGHTS
from onward.runtimes.openvino.joined_files import begins, can_join

MIN_SHARED_BYTES = 1024
"""Of a constant: smaller ones are not worth a look."""
_ALIGNMENT = 64
"""Of each constant in the file, in bytes: a cache line."""
_CHUNK = 1 << 22

_Key = tuple[int, bytes]
"""Size and digest of a constant."""


def can_share() -> bool:
    """Return whether models can share weights on this system."""
    return can_join()


def share_weights(folder: Path, base: Path) -> None:
    """Leave the constants that the conversion in `base` has out of the conversion in `folder`.

    Where hard links are impossible, nothing changes. Raises OSError for files that cannot be read or written.
    """
    try:
        os.link(base / WEIGHTS, folder / SHARED)
    except OSError:
        return
    with _Weights(base / WEIGHTS) as weights:
        known = {weights.key(*place): place[0] for _, place in _constants(ElementTree.parse(base / GRAPH))}
        start = begins([len(weights.memory)])[-1]
    tree = ElementTree.parse(folder / GRAPH)
    smaller = folder / f"{WEIGHTS}.new"
    end = 0
    with _Weights(folder / WEIGHTS) as weights, smaller.open("xb") as file:
        for data, (offset, size) in _constants(tree):
            shared = known.get(weights.key(offset, size)) if size >= MIN_SHARED_BYTES else None
            if shared is None:
                padding = -end % _ALIGNMENT
                file.write(bytes(padding))
                shared = start + end + padding
                end += padding + size
                for part in weights.parts(offset, size):
                    file.write(part)
            data.set("offset", str(shared))
    tree.write(folder / GRAPH, encoding="utf-8", xml_declaration=True)
    smaller.replace(folder / WEIGHTS)


def _constants(
    tree: ElementTree.ElementTree[ElementTree.Element],
) -> Iterator[tuple[ElementTree.Element, tuple[int, int]]]:
    """Yield the elements that say where a constant's bytes are, and offset and size."""
    for layer in tree.iter("layer"):
        if layer.get("type") == "Const" and (data := layer.find("data")) is not None:
            yield data, (int(data.get("offset", "")), int(data.get("size", "")))


class _Weights:
    """A mapped file of weights; a context manager."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __enter__(self) -> _Weights:
        return self

    def __exit__(self, *error: object) -> None:
        self.memory.close()

    def parts(self, offset: int, size: int) -> Iterator[bytes]:
        """Yield the bytes of a constant, a few at a time."""
        for begin in range(offset, offset + size, _CHUNK):
            yield self.memory[begin : min(begin + _CHUNK, offset + size)]
            if hasattr(mmap, "MADV_DONTNEED"):
                self.memory.madvise(mmap.MADV_DONTNEED)

    def key(self, offset: int, size: int) -> _Key:
        digest = hashlib.blake2b(digest_size=32)
        for part in self.parts(offset, size):
            digest.update(part)
        return size, digest.digest()
