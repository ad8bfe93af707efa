"""Runs tiny models with every buffer of the native runtime right before a page that may not be touched: a kernel that
reads or writes past its memory ends this process. Linux; started by test_model_guards."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onward.kernels import memory

_KEPT: list[object] = []


def guarded(size: int) -> NDArray[np.uint8]:
    """Zeroed memory, in lines of 64 bytes, that ends at a page which is neither readable nor writable."""
    used = -(-max(size, 1) // 64) * 64
    pages = -(-used // mmap.PAGESIZE)
    mapped = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = np.frombuffer(mapped, np.uint8)
    _KEPT.append(whole)
    end = pages * mmap.PAGESIZE
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(whole.ctypes.data + end), ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return whole[end - used : end - used + size]


memory.untouched = guarded  # before the runtime imports it

from onward.engine.model import Row  # noqa: E402
from onward.model_files.gguf import GGUFFiles  # noqa: E402
from onward.runtimes.base import RuntimeOptions  # noqa: E402
from onward.runtimes.table import load_model  # noqa: E402
from tests.runtimes.native.drafted_steps import drafted_steps  # noqa: E402


def main(path: str) -> None:
    files = GGUFFiles(Path(path))
    for precision, threads in (("fast", 1), ("fast", 2), ("exact", 1)):
        options = RuntimeOptions(
            runtime="native",
            threads=threads,
            precision="fast" if precision == "fast" else "exact",
            kv_memory=4_000_000,
            has_predictor=bool(files.checkpoint().predictions),
        )
        loaded = load_model(files, options, lambda line: None)
        model = loaded.model
        tokens = [index % model.vocab_size for index in range(70)]
        last = model.blocks - 1
        blocks = [last, 0, last - 1]
        model.evaluate([Row(0, tokens, 0, blocks, 70, state=9)])
        if loaded.predictor is not None:
            for begin, outputs in ((0, 0), (33, 1), (69, 1)):
                loaded.predictor.evaluate([Row(0, tokens[begin:], begin, blocks, outputs)])
            for token in range(40):
                loaded.predictor.extend(token % model.vocab_size)
        for count in (1, 2, 3, 5, 8):
            model.evaluate([Row(index, [1], 0, [index + 1], 1, state=index) for index in range(count)])
        model.evaluate([Row(0, tokens[:1], 70, blocks, 1, state=9)])
        others = Row(1, tokens[:9], 0, [1], 9, state=1), Row(2, [1], 0, [2], 0, state=2)
        model.evaluate([Row(0, tokens, 0, blocks, 3), *others])
        for rows in drafted_steps(model) if model.shape.states else ():
            model.evaluate(rows)
        model.close()


if __name__ == "__main__":
    if sys.argv[1] == "--overrun":
        place = guarded(64)
        ctypes.memset(place.ctypes.data, 1, 65)
    main(sys.argv[1])
