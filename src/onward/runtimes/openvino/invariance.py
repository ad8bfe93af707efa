"""Proves at load that a row's bits do not depend on the rows beside it, or finds the window in which they do not.

Which kernel computes a layer, and in which order it sums, OpenVINO chooses by processor, weights' type and shape,
number of threads and number of tokens. So the promise is tried, not assumed: docs/explanation/determinism.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onward.engine.model import BLOCK_TOKENS, CHUNK_TOKENS, Row, blocks_for
from onward.runtimes.openvino.index import read_index, write_index
from onward.runtimes.openvino.window import Window

Evaluate = Callable[[Sequence[Row]], NDArray[np.float32]]

NOTE = (
    "This model's results may depend on what else runs at the same time: OpenVINO rounds differently here with "
    "other numbers of tokens in a step, and no limit on them mends it."
)
WINDOWS = (Window(), Window(most=64), Window(least=5), Window(least=5, most=64), Window(least=17, most=64))
"""Tried in this order. oneDNN's kernels change at 5 tokens (weights unpacked once a step), 7, 17 (AMX), 65 and 81."""
BLOCKS_NEEDED = 8

_PROOF = "window 5"  # raised when other steps are tried: what was remembered of the old ones no longer holds
_PROMPT = 2 * BLOCK_TOKENS + 2
_CUTS = ((BLOCK_TOKENS,), (CHUNK_TOKENS, 2 * BLOCK_TOKENS - 3, 2 * BLOCK_TOKENS))
_ROWS = (5, 2, 16, 20)
_CHUNK = 80
_LONG_CHUNK = 600
_FAR = 2048  # tokens: how far into a context `agree` looks, where a model has so many


def find_window(evaluate: Callable[[Window], Evaluate], vocab_size: int) -> Window | None:
    """The first of WINDOWS in which rows have the same bits in any company; None where none is.

    Writes garbage into the first BLOCKS_NEEDED blocks. `evaluate` gives the model as it is with a window. All but
    the usual window are also tried with a long chunk: what splits sums in steps of 5 tokens and in those of 80
    may not in those of 300. (Where it splits none of 5 tokens, it splits none at all: oneDNN's rule for it.)
    """
    chunks = (_CHUNK if window == Window() else _LONG_CHUNK for window in WINDOWS)
    tried = zip(WINDOWS, chunks, strict=True)
    return next((window for window, chunk in tried if holds(evaluate(window), vocab_size, chunk)), None)


def remembered_window(cache_dir: Path | None, key: str, find: Callable[[], Window | None]) -> Window | None:
    """What `find` gave when it was last asked under this key, else what it gives now."""
    key = f"{_PROOF} {key}"
    known = read_index(cache_dir).get(key)
    for window in WINDOWS:
        if known == str(window):
            return window
    found = find()
    if found is not None:
        write_index(cache_dir, {**read_index(cache_dir), key: str(found)})
    return found


def remembered(cache_dir: Path | None, key: str) -> bool | None:
    """The answer that was last kept under this key."""
    return {"yes": True, "no": False}.get(read_index(cache_dir).get(f"{_PROOF} {key}", ""))


def remember(cache_dir: Path | None, key: str, answer: bool) -> None:
    write_index(cache_dir, {**read_index(cache_dir), f"{_PROOF} {key}": "yes" if answer else "no"})


def holds(evaluate: Evaluate, vocab_size: int, longest: int = _CHUNK) -> bool:
    """Whether two successive tokens of a sequence have the same bits one by one, in one step (as drafts have
    them), among other rows and beside a prompt's chunk of `longest` tokens, and a prompt the same whole and cut."""
    whole = _bits(evaluate([Row(0, _tokens(0, _PROMPT, vocab_size), 0, (0, 1, 2), 1)]))
    first, second = (Row(0, _tokens(at, 1, vocab_size), at, (0, 1, 2), 1) for at in (_PROMPT, _PROMPT + 1))
    alone = _bits(evaluate([first])) + _bits(evaluate([second]))
    others = [Row(1, _tokens(at, 1, vocab_size), at, (3,), 1) for at in range(max(_ROWS))]
    # A long chunk writes its few blocks again and again; its own numbers do not matter here.
    spare = [4 + index % (BLOCKS_NEEDED - 4) for index in range(blocks_for(longest))]
    chunk = Row(2, _tokens(7, longest, vocab_size), 0, spare, longest)
    companies = [others[: count - 2] for count in _ROWS]
    if any(_bits(evaluate([first, second, *company])[:2]) != alone for company in companies):
        return False
    if _bits(evaluate([first, second, chunk])[:2]) != alone:
        return False
    return all(_last_of_cut(evaluate, cuts, vocab_size) == whole for cuts in _CUTS)


def agree(one: Evaluate, other: Evaluate, vocab_size: int, context_length: int) -> bool:
    """Whether two ways to evaluate give the same bits in each step of `holds`, and far into a context.

    Far away the few blocks there are stand for many, but for the one that is written to: what they hold does not
    matter, as long as it is the same.
    """
    same = True

    def both(rows: Sequence[Row]) -> NDArray[np.float32]:
        nonlocal same
        logits = one(rows)
        same = same and other(rows).tobytes() == logits.tobytes()
        return logits

    if not holds(both, vocab_size) or not same:
        return False
    start = (min(context_length, _FAR) - BLOCK_TOKENS) // BLOCK_TOKENS * BLOCK_TOKENS
    last = BLOCKS_NEEDED - 1
    blocks = [*(index % last for index in range(blocks_for(start))), last]
    rows = [Row(at, _tokens(start + at, 1, vocab_size), start + at, blocks, 1) for at in range(max(_ROWS))]
    chunk = Row(0, _tokens(start, CHUNK_TOKENS, vocab_size), start, blocks, CHUNK_TOKENS)
    for step in (rows[:1], rows[:3], rows, [chunk], [chunk, *rows[CHUNK_TOKENS:]]):
        both(step)
    return same


def _last_of_cut(evaluate: Evaluate, cuts: tuple[int, ...], vocab_size: int) -> bytes:
    """The bits at the end of the prompt, read in chunks that end at `cuts`."""
    bits = b""
    for start, end in pairwise((0, *cuts, _PROMPT)):
        chunk = Row(0, _tokens(start, end - start, vocab_size), start, (4, 5, 6), end - start)
        bits = _bits(evaluate([chunk])[-1:])
    return bits


def _tokens(start: int, count: int, vocab_size: int) -> list[int]:
    """What stands at positions `start` … of every sequence of the proof: ids from all over the vocabulary."""
    return [(7919 * position + 13) % vocab_size for position in range(start, start + count)]


def _bits(logits: NDArray[np.float32]) -> bytes:
    return logits.tobytes()
