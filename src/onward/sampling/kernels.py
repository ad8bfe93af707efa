"""The compiled sampler: `run` works through draws and scores, one call for all rows of a step, or of a thread.

min_p, top_k and top_p each keep a prefix of the total order (see vocab_blocks.py), so nothing is ever sorted: a draw
that falls outside the nucleus is repeated among the tokens above the one it fell on. That is exact, because the
nucleus is a prefix too, and the expected number of attempts is logarithmic.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from onward.sampling.top_k import bound_of_best, find_best, first_of
from onward.sampling.vocab_blocks import (
    BLOCK,
    NOTHING,
    block_maximum,
    compiled,
    find_maxima,
    is_above,
    masses_above,
    pick,
)

DONE = -1
"""`run` returns this, or i ≥ 0: the logits of item i are not finite, or i ≤ -2: item -2 - i has no token left."""

SOURCES = ("vocab_blocks.py", "top_k.py", "kernels.py")
"""The files of this folder that hold compiled code or its constants."""

_LARGEST = np.finfo(np.float32).max
_ONE = np.float32(1)
_U = np.uint64


@compiled()
def mix(word: Any) -> Any:
    word = (word ^ (word >> _U(30))) * _U(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> _U(27))) * _U(0x94D049BB133111EB)
    return word ^ (word >> _U(31))


@compiled()
def uniform(seed: Any, choice: Any, position: Any, attempt: Any) -> Any:
    golden = _U(0x9E3779B97F4A7C15)
    state = mix(seed + golden)
    state = mix(state + golden * (choice + _U(1)))
    state = mix(state + golden * (position + _U(1)))
    state = mix(state + golden * (attempt + _U(1)))
    return np.float64(state >> _U(11)) * 2.0**-53


@compiled()
def change(row: Any, maxima: Any, token: Any, value: Any) -> None:
    """Write one logit, a finite one always finite; mark its block's maximum as unknown."""
    row[token] = value if value == -np.inf else min(max(value, -_LARGEST), _LARGEST)
    maxima[token // BLOCK] = np.nan


@compiled()
def edit(row: Any, maxima: Any, item: Any, edit_ids: Any, edit_values: Any) -> Any:
    """Penalties, bias, bans, in place on a copy of the row and of its block maxima; the new maximum.

    Each step is computed in float64 and rounded to float32. repetition_penalty is the rule of Hugging Face
    transformers, presence and frequency are spec/completions §2.9. A bias is plain addition: ±100 moves a logit
    past all others of an ordinary model, which in effect forces or bans a token (spec/completions §2.8).
    """
    for j in range(item.penalties, item.biases):
        value = np.float64(row[edit_ids[j]])
        value = value / item.repetition if value > 0.0 else value * item.repetition
        change(row, maxima, edit_ids[j], value - edit_values[j] * item.frequency - item.presence)
    for j in range(item.biases, item.bans):
        change(row, maxima, edit_ids[j], np.float64(row[edit_ids[j]]) + edit_values[j])
    for j in range(item.bans, item.end):
        change(row, maxima, edit_ids[j], -np.inf)
    bits, highest = row.view(np.int32), NOTHING
    for k in range(maxima.size):
        if np.isnan(maxima[k]):
            maxima[k] = block_maximum(bits[k * BLOCK : min((k + 1) * BLOCK, row.size)])
        highest = max(highest, maxima[k])
    return highest


@compiled()
def floor_of(row: Any, maxima: Any, maximum: Any, item: Any) -> Any:
    """(value, token) that the tokens which min_p and top_k keep are above."""
    value, token = NOTHING, row.size
    if item.min_p > 0.0:
        value = min(maximum, np.float32(maximum + item.temperature * np.log(item.min_p)))
    if 0 < item.top_k < row.size:
        best_value, best_token = bound_of_best(row, maxima, maximum, item.top_k)
        if is_above(best_value, best_token, value, token):
            value, token = best_value, best_token
    return value, token


@compiled()
def draw(row: Any, maxima: Any, maximum: Any, item: Any, masses: Any, whole: Any, weights: Any) -> Any:
    """Draw a token. masses[0] holds the block masses to draw from and `whole` their sum, or `whole` is 0 where
    they have yet to be made; masses[1] and masses[2] are scratch.

    Ends: every rejection leaves fewer tokens, and the last one left has nothing above it, so it is accepted.
    """
    scale = np.float32(min(max(1.0 / item.temperature, 1e-30), 1e30))
    value, token = floor_of(row, maxima, maximum, item)
    now, total = 0, whole
    if total == 0.0 or value != NOTHING:
        now, total = 1, masses_above(row, maxima, value, token, maximum, scale, masses[1])
    target, attempt = item.top_p * total, _U(0)
    while True:
        goal = uniform(item.seed, item.choice, item.position, attempt) * total
        chosen = pick(row, value, token, maximum, scale, masses[now], goal, weights)
        if item.top_p >= 1.0:
            return chosen
        value, token, now = row[chosen], chosen, 2 if now == 1 else 1
        total = masses_above(row, maxima, value, token, maximum, scale, masses[now])
        if total < target:
            return chosen
        attempt += _U(1)


@compiled()
def copy_and_edit(row: Any, maxima: Any, item: Any, edit_ids: Any, edit_values: Any, edited: Any) -> Any:
    """`edited` and maxima[1] become those of the item's own row; its maximum."""
    for i in range(row.size):
        edited[i] = row[i]
    for k in range(maxima.shape[1]):
        maxima[1, k] = maxima[0, k]
    return edit(edited, maxima[1], item, edit_ids, edit_values)


@compiled()
def report(row: Any, maxima: Any, normaliser: Any, token: Any, ids: Any, values: Any) -> Any:
    """Fill `ids` and `values` with the most likely tokens and their log-probabilities; the one of `token`."""
    if ids.size:
        find_best(row, maxima, ids, values)
    for j in range(ids.size):
        values[j] = values[j] - normaliser
    return row[token] - normaliser


@compiled()
def run(
    logits: Any,
    items: Any,
    edit_ids: Any,
    edit_values: Any,
    edited: Any,  # float32 [vocabulary]: scratch
    maxima: Any,  # float32 [2, blocks]: scratch
    masses: Any,  # float64 [3, blocks]: scratch
    tokens: Any,
    logprobs: Any,
    normalisers: Any,
    top_ids: Any,
    top_logprobs: Any,
) -> Any:
    """Work through the items; write results at their indices; DONE, or what went wrong (see DONE).

    `logits` stay as they are. A row's summary (block maxima, masses, their sum) is made once for consecutive
    items that read it, always by the same code, so that its bits depend on the row alone.
    """
    weights = np.empty(BLOCK, np.float32)
    current, maximum, whole = -1, NOTHING, 0.0
    for i in range(items.size):
        item = items[i]
        row, plain = logits[item.row], item.end == item.penalties
        if item.row != current:
            current, whole, maximum = item.row, 0.0, find_maxima(row, maxima[0])
            if not np.isfinite(maximum):
                return i
        greedy = item.temperature == 0.0 or item.top_p == 0.0 or item.top_k == 1
        ordinary = plain and not greedy and item.temperature == 1.0
        if whole == 0.0 and (item.top >= 0 or ordinary):
            whole = masses_above(row, maxima[0], NOTHING, row.size, maximum, _ONE, masses[0])
        view, peaks, peak = row, maxima[0], maximum
        if not plain:
            view, peaks = edited, maxima[1]
            peak = copy_and_edit(row, maxima, item, edit_ids, edit_values, edited)
            if peak == NOTHING:
                return -2 - i
        if item.given >= 0:
            tokens[i] = item.given
        elif greedy:
            tokens[i] = first_of(view, peaks, peak)
        else:
            tokens[i] = draw(view, peaks, peak, item, masses, whole if ordinary else 0.0, weights)
        normalisers[i] = maximum + np.log(whole) if item.top >= 0 else np.nan
        top = min(max(item.top, 0), top_ids.shape[1])
        logprobs[i] = report(row, maxima[0], normalisers[i], tokens[i], top_ids[i, :top], top_logprobs[i, :top])
    return DONE


def source_digest() -> int:
    """Digest of all files that `run` is compiled from."""
    folder = Path(__file__).parent
    return crc32(b"".join((folder / name).read_bytes() for name in SOURCES))


def entry_point() -> Any:
    """`run`, compiled once a machine and kept in numba's cache.

    numba takes a cached function for fresh when its own file has not changed; but it keys the cache by the values
    of closure variables too, so with the digest in one every change counts. Where numba finds no folder to write
    to, each process compiles for itself.
    """
    digest = source_digest()

    def sampling(*arguments: Any) -> Any:
        return run(*arguments) if digest >= 0 else DONE

    try:
        return compiled(cache=True)(sampling)
    except RuntimeError:
        return compiled()(sampling)
