"""Checks at load that a row's bits do not depend on the other rows of its step, or finds the window in which they do
not.

OpenVINO chooses the kernel of a layer, and the order in which it sums, by processor, type and shape of the weights,
number of threads and number of tokens. So invariance is checked, not assumed: docs/explanation/determinism.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import Row
from onward.runtimes.index import read_index, write_index
from onward.runtimes.openvino.window import BLOCK_TOKENS, MIN_PREFILL_TOKENS, STEP_SHAPE, Window

Evaluate = Callable[[Sequence[Row]], NDArray[np.float32]]

NOTE = (
    "Results of this model may depend on what else runs at the same time: on this machine, OpenVINO rounds differently "
    "for different numbers of tokens in a step, and no limit on that number prevents it."
)
WINDOWS = (
    Window(),
    Window(max_tokens=64),
    Window(min_tokens=5),
    Window(min_tokens=5, max_tokens=64),
    Window(min_tokens=17, max_tokens=64),
)
"""Tried in this order. oneDNN's kernels change at 5 tokens (weights unpacked once per step), 7, 17 (AMX), 65 and 81."""
MIN_BLOCKS = 8
"""KV blocks that a check writes to."""

_REVISION = "window 5"  # raised when other steps are checked: results stored for the old ones no longer count
_PROMPT_TOKENS = 2 * BLOCK_TOKENS + 2
_CUTS = ((BLOCK_TOKENS,), (MIN_PREFILL_TOKENS, 2 * BLOCK_TOKENS - 3, 2 * BLOCK_TOKENS))
_ROW_COUNTS = (5, 2, 16, 20)
_CHUNK_TOKENS = 80
_LONG_CHUNK_TOKENS = 600


def find_window(evaluate: Callable[[Window], Evaluate], vocab_size: int) -> Window | None:
    """Return the first of WINDOWS in which rows have the same bits whatever else is in the step; None if there is none.

    Overwrites the first MIN_BLOCKS blocks. `evaluate` returns the model's evaluation under a window. All windows except
    the usual one are also checked with a long prefill chunk: what splits sums in steps of 5 tokens and of 80 may not
    split them in steps of 300. (What does not split them in steps of 5 never does: oneDNN's rule.)
    """
    chunks = (_CHUNK_TOKENS if window == Window() else _LONG_CHUNK_TOKENS for window in WINDOWS)
    tried = zip(WINDOWS, chunks, strict=True)
    return next((window for window, chunk in tried if is_invariant(evaluate(window), vocab_size, chunk)), None)


def stored_window(cache_dir: Path | None, key: str, find: Callable[[], Window | None]) -> Window | None:
    """Return the window stored under `key`, else the one that `find` returns, which is then stored."""
    key = f"{_REVISION} {key}"
    known = read_index(cache_dir).get(key)
    for window in WINDOWS:
        if known == window.label:
            return window
    found = find()
    if found is not None:
        write_index(cache_dir, {**read_index(cache_dir), key: found.label})
    return found


def is_invariant(evaluate: Evaluate, vocab_size: int, chunk_tokens: int = _CHUNK_TOKENS) -> bool:
    """Return whether rows have the same bits whatever else is in the step. Overwrites the first MIN_BLOCKS blocks.

    Compares two successive tokens of a sequence one per step, both in one step (as with drafts), among other rows and
    together with a prefill chunk of `chunk_tokens`; and a prompt in one chunk and in several.
    """
    whole = _bits(evaluate([Row(0, _tokens(0, _PROMPT_TOKENS, vocab_size), 0, (0, 1, 2), 1)]))
    positions = (_PROMPT_TOKENS, _PROMPT_TOKENS + 1)
    first, second = (Row(0, _tokens(at, 1, vocab_size), at, (0, 1, 2), 1) for at in positions)
    alone = _bits(evaluate([first])) + _bits(evaluate([second]))
    others = [Row(1, _tokens(at, 1, vocab_size), at, (3,), 1) for at in range(max(_ROW_COUNTS))]
    # A long chunk writes to its few blocks repeatedly; its own results do not matter here.
    spare = [4 + index % (MIN_BLOCKS - 4) for index in range(STEP_SHAPE.blocks_for(chunk_tokens))]
    chunk = Row(2, _tokens(7, chunk_tokens, vocab_size), 0, spare, chunk_tokens)
    batches = [[first, second, *others[: count - 2]] for count in _ROW_COUNTS]
    if any(_bits(evaluate(rows)[:2]) != alone for rows in batches):
        return False
    if _bits(evaluate([first, second, chunk])[:2]) != alone:
        return False
    return all(_last_of_cut(evaluate, cuts, vocab_size) == whole for cuts in _CUTS)


def _last_of_cut(evaluate: Evaluate, cuts: tuple[int, ...], vocab_size: int) -> bytes:
    """Return the bits of the prompt's last token, with prefill chunks that end at `cuts`."""
    bits = b""
    for start, end in pairwise((0, *cuts, _PROMPT_TOKENS)):
        chunk = Row(0, _tokens(start, end - start, vocab_size), start, (4, 5, 6), end - start)
        bits = _bits(evaluate([chunk])[-1:])
    return bits


def _tokens(start: int, count: int, vocab_size: int) -> list[int]:
    """Return the token ids at positions `start` … of every sequence here: from all over the vocabulary."""
    return [(7919 * position + 13) % vocab_size for position in range(start, start + count)]


def _bits(logits: NDArray[np.float32]) -> bytes:
    return logits.tobytes()
