"""Blocks of tests in a folder. As a program, it writes and removes them: `some FOLDER FIRST` or `endless FOLDER`."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onward.engine import block_files
from onward.engine.block_files import BlockFiles, Unusable, file_bytes, next_key, root_key
from onward.engine.prefix_tree import PackedScores

BLOCK = 1000
FILE = file_bytes(BLOCK, None)


def opened(folder: Path, max_bytes: int = 1 << 20) -> BlockFiles:
    return BlockFiles(folder, max_bytes, BLOCK)


def key_of(number: int) -> bytes:
    return next_key(root_key("model", ""), [number])


def content(number: int) -> list[NDArray[np.uint8]]:
    data = np.random.default_rng(number).integers(0, 256, BLOCK, np.uint8)
    return [data[:300].copy(), data[300:].copy()]


def put(files: BlockFiles, number: int, scores: PackedScores | None = None, ns: int = 10**18) -> int:
    return files.write(key_of(number), content(number), scores, ns + number, files.word)


def get(files: BlockFiles, number: int) -> tuple[bytes, PackedScores | None]:
    parts = [np.zeros(300, np.uint8), np.zeros(700, np.uint8)]
    scores = files.read(key_of(number), parts)
    return b"".join(part.tobytes() for part in parts), scores


def whole(number: int) -> bytes:
    return b"".join(part.tobytes() for part in content(number))


def has(files: BlockFiles, number: int) -> bool:
    try:
        return get(files, number)[0] == whole(number)
    except Unusable:
        return False


def write_some(folder: Path, first: int) -> None:
    """Write blocks that others write and remove meanwhile; whatever is there is whole."""
    files = BlockFiles(folder, 30 * FILE, BLOCK)
    for number in range(first, first + 60):
        put(files, number % 40)
        for other in range(0, 40, 7):
            try:
                data, _ = get(files, other)
            except Unusable:
                continue
            assert data == whole(other)


def write_endlessly(folder: Path) -> None:
    files = opened(folder, 50 * FILE)
    print("ready", flush=True)
    for number in count():
        put(files, number % 30)
        files.drop([key_of((number + 8) % 30)])


if __name__ == "__main__":
    block_files.MIN_FREE_BYTES = 0  # the disk of the tests may be full
    if sys.argv[1] == "some":
        write_some(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        write_endlessly(Path(sys.argv[2]))
