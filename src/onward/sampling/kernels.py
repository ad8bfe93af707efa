"""The compiled sampler: `run` samples or scores all rows of a step, or the part of one thread, in one call.

min_p, top_k and top_p each keep a prefix of the ranking (see vocab_blocks.py), so nothing is ever sorted: a token
sampled outside of the nucleus is rejected, and the next attempt samples among the tokens that rank above it. That is
exact, because the nucleus is a prefix too; the expected number of attempts is logarithmic.

Shapes and dtypes, with N work items, P rows of logits, B blocks of the vocabulary and E logit edits:

    logits        float32 [P, vocab_size]    read only, C-contiguous
    items         WORK_ITEM_DTYPE [N]        read only (choice.py); `item` is one of them
    edit_ids      int64 [≥ E]                read only; edit_values float64 [≥ E], read only
    row           float32 [vocab_size]       one row of `logits`, or its edited copy
    masks         uint32 [M, words]          read only (masks.py); row 0 stands for no mask
    edited        float32 [vocab_size]       scratch
    maxima        float32 [2, B]             scratch: of the row, of its edited copy; below `run` often one of the two
    masses        float64 [3, B]             scratch
    weights       float32 [BLOCK_TOKENS]     scratch
    tokens        int64 [N]                  results, written, as are
    logprobs      float32 [N]
    normalizers   float64 [N]
    ranks         int64 [N]                  0 where the item does not ask for it
    top_ids       int64 [N, K]
    top_logprobs  float32 [N, K]

The caller owns all arrays. The functions hold no state and release the GIL: any thread may call them, as long as no
other thread uses the arrays that they write.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onward.sampling.compilation import cached, source_digest
from onward.sampling.outputs import NO_TOKEN_LEFT, NOT_FINITE
from onward.sampling.top_k import find_top_k, first_token_with, rank_of, top_k_bound
from onward.sampling.vocab_blocks import (
    BLOCK_TOKENS,
    NEGATIVE_INFINITY,
    block_masses_above,
    block_maximum,
    compiled,
    compute_block_maxima,
    is_above,
    pick_token,
)

COMPILED_FILES = ("outputs.py", "vocab_blocks.py", "top_k.py", "kernels.py")
"""The files of this folder that hold compiled code or its constants."""

_MAX_LOGIT = np.finfo(np.float32).max
_ONE = np.float32(1)
_U64 = np.uint64
_ALL_BITS, _FIRST_BIT = np.uint32(0xFFFFFFFF), np.uint32(1)


@compiled()
def mix(word: Any) -> Any:
    """Return SplitMix64's finaliser of a uint64; the same as `rng.mix`."""
    word = (word ^ (word >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> _U64(27))) * _U64(0x94D049BB133111EB)
    return word ^ (word >> _U64(31))


@compiled()
def uniform(seed: Any, choice: Any, position: Any, attempt: Any) -> Any:
    """Return a float64 in [0, 1) from four uint64; the same as `rng.uniform`."""
    golden_gamma = _U64(0x9E3779B97F4A7C15)
    state = mix(seed + golden_gamma)
    state = mix(state + golden_gamma * (choice + _U64(1)))
    state = mix(state + golden_gamma * (position + _U64(1)))
    state = mix(state + golden_gamma * (attempt + _U64(1)))
    return np.float64(state >> _U64(11)) * 2.0**-53


@compiled()
def write_logit(row: Any, maxima: Any, token: Any, value: Any) -> None:
    """Write one logit; clip a finite one to float32's range; mark the maximum of its block as unknown (NaN)."""
    row[token] = value if value == -np.inf else min(max(value, -_MAX_LOGIT), _MAX_LOGIT)
    maxima[token // BLOCK_TOKENS] = np.nan


@compiled()
def copy_masked(row: Any, maxima: Any, mask: Any, edited: Any) -> None:
    """Write `row` to `edited` (float32 [vocab_size]), with -inf for the tokens that `mask` (uint32 [words], see
    masks.py) does not allow, and the block maxima to maxima[1]: NaN, for unknown, where some of a block are allowed.

    maxima[0] (maxima is float32 [2, B]) holds those of `row`.
    """
    for k in range(maxima.shape[1]):
        start, end = k * BLOCK_TOKENS, min((k + 1) * BLOCK_TOKENS, row.size)
        words = mask[start // 32 : (end + 31) // 32]
        some, every = np.uint32(0), _ALL_BITS
        for bits in words:
            some, every = some | bits, every & bits
        if some == 0:
            edited[start:end] = NEGATIVE_INFINITY
            maxima[1, k] = NEGATIVE_INFINITY
        elif every == _ALL_BITS:
            copy_logits(row[start:end], edited[start:end])
            maxima[1, k] = maxima[0, k]
        else:
            copy_allowed(row[start:end], words, edited[start:end])
            maxima[1, k] = np.nan


@compiled()
def copy_logits(source: Any, target: Any) -> None:
    """Write `source` to `target`, both float32 [n]."""
    for i in range(source.size):
        target[i] = source[i]


@compiled()
def copy_allowed(source: Any, words: Any, target: Any) -> None:
    """Write `source` to `target`, both float32 [n], with -inf where the bit of `words` (uint32 [ceil(n / 32)]) is 0."""
    for word in range(words.size):
        bits, logits, copied = words[word], source[word * 32 : word * 32 + 32], target[word * 32 : word * 32 + 32]
        for i in range(logits.size):
            copied[i] = logits[i] if (bits >> np.uint32(i)) & _FIRST_BIT else NEGATIVE_INFINITY


@compiled()
def apply_edits(row: Any, maxima: Any, item: Any, edit_ids: Any, edit_values: Any) -> Any:
    """Apply penalties, bias and bans to `row` and its block `maxima` (float32 [B]) in place; return the new maximum.

    Each step is computed in float64 and rounded to float32. repetition_penalty is the rule of Hugging Face
    transformers, presence and frequency are behaviour §2.9. A bias is plain addition: ±100 moves a logit
    past all others of an ordinary model, which in effect forces or bans a token (behaviour §2.8).
    """
    for j in range(item.penalties_start, item.biases_start):
        value = np.float64(row[edit_ids[j]])
        value = value / item.repetition_penalty if value > 0.0 else value * item.repetition_penalty
        value = value - edit_values[j] * item.frequency_penalty - item.presence_penalty
        write_logit(row, maxima, edit_ids[j], value)
    for j in range(item.biases_start, item.bans_start):
        write_logit(row, maxima, edit_ids[j], np.float64(row[edit_ids[j]]) + edit_values[j])
    for j in range(item.bans_start, item.edits_end):
        write_logit(row, maxima, edit_ids[j], -np.inf)
    bits, highest = row.view(np.int32), NEGATIVE_INFINITY
    for k in range(maxima.size):
        if np.isnan(maxima[k]):
            maxima[k] = block_maximum(bits[k * BLOCK_TOKENS : min((k + 1) * BLOCK_TOKENS, row.size)])
        highest = max(highest, maxima[k])
    return highest


@compiled()
def min_p_top_k_bound(row: Any, maxima: Any, maximum: Any, item: Any) -> Any:
    """Return (value, token), float32 and int64: min_p and top_k keep the tokens above. `maxima` is float32 [B]."""
    value, token = NEGATIVE_INFINITY, row.size
    if item.min_p > 0.0:
        value = min(maximum, np.float32(maximum + item.temperature * np.log(item.min_p)))
    if 0 < item.top_k < row.size:
        top_k_value, top_k_token = top_k_bound(row, maxima, maximum, item.top_k)
        if is_above(top_k_value, top_k_token, value, token):
            value, token = top_k_value, top_k_token
    return value, token


@compiled()
def sample_token(row: Any, maxima: Any, maximum: Any, item: Any, masses: Any, row_mass: Any, weights: Any) -> Any:
    """Return a sampled token (int64). `maxima` is float32 [B], of `row`.

    masses[0] must hold the block masses of the row and `row_mass` (float64) their sum, or `row_mass` is 0 where they
    have not been computed at this temperature. Overwrites masses[1], masses[2] and `weights`.

    Terminates: every rejection leaves fewer tokens, and above the last one left there is nothing, so it is accepted.
    """
    scale = np.float32(min(max(1.0 / item.temperature, 1e-30), 1e30))
    value, token = min_p_top_k_bound(row, maxima, maximum, item)
    current, total = 0, row_mass
    if total == 0.0 or value != NEGATIVE_INFINITY:
        current, total = 1, block_masses_above(row, maxima, value, token, maximum, scale, masses[1])
    target, attempt = item.top_p * total, _U64(0)
    while True:
        goal = uniform(item.seed, item.choice, item.position, attempt) * total
        chosen = pick_token(row, value, token, maximum, scale, masses[current], goal, weights)
        if item.top_p >= 1.0:
            return chosen
        value, token, current = row[chosen], chosen, 2 if current == 1 else 1
        total = block_masses_above(row, maxima, value, token, maximum, scale, masses[current])
        if total < target:
            return chosen
        attempt += _U64(1)


@compiled()
def copy_and_edit(row: Any, maxima: Any, item: Any, edit_ids: Any, edit_values: Any, masks: Any, edited: Any) -> Any:
    """Write the item's edited row to `edited` and its block maxima to maxima[1]; return its maximum (float32).

    The mask comes first, because it is applied while copying; no other edit changes a logit of -inf.
    """
    if item.mask > 0:
        copy_masked(row, maxima, masks[item.mask], edited)
    else:
        copy_logits(row, edited)
        copy_logits(maxima[0], maxima[1])
    return apply_edits(edited, maxima[1], item, edit_ids, edit_values)


@compiled()
def gather_logprobs(row: Any, maxima: Any, normalizer: Any, token: Any, ids: Any, values: Any) -> Any:
    """Write the most likely tokens to `ids` (int64 [k]) and their log-probabilities to `values` (float32 [k]).

    Returns the log-probability of `token` (float64). `maxima` is float32 [B]; `normalizer` is a float64, NaN where no
    log-probability is needed.
    """
    if ids.size:
        find_top_k(row, maxima, ids, values)
    for j in range(ids.size):
        values[j] = values[j] - normalizer
    return row[token] - normalizer


@compiled()
def run(
    logits: Any,
    items: Any,
    edit_ids: Any,
    edit_values: Any,
    masks: Any,
    edited: Any,
    maxima: Any,
    masses: Any,
    tokens: Any,
    logprobs: Any,
    normalizers: Any,
    ranks: Any,
    top_ids: Any,
    top_logprobs: Any,
) -> Any:
    """Sample or score every item and write the results at its index: NOT_FINITE or NO_TOKEN_LEFT as the token of
    an item that has none. Returns how many of those there are.

    A row's block maxima, masses and their sum are computed once for consecutive items that read it, always by the
    same code, so that their bits depend on the row alone.
    """
    weights = np.empty(BLOCK_TOKENS, np.float32)
    current, maximum, row_mass, num_failed = -1, NEGATIVE_INFINITY, 0.0, 0
    for i in range(items.size):
        item = items[i]
        row, is_unedited = logits[item.row], item.edits_end == item.penalties_start and item.mask == 0
        if item.row != current:
            current, row_mass, maximum = item.row, 0.0, compute_block_maxima(row, maxima[0])
        if not np.isfinite(maximum):
            tokens[i], num_failed = NOT_FINITE, num_failed + 1
            continue
        is_greedy = item.temperature == 0.0 or item.top_p == 0.0 or item.top_k == 1
        can_use_row_mass = is_unedited and not is_greedy and item.temperature == 1.0
        if row_mass == 0.0 and (item.num_top >= 0 or can_use_row_mass):
            row_mass = block_masses_above(row, maxima[0], NEGATIVE_INFINITY, row.size, maximum, _ONE, masses[0])
        final_row, final_maxima, final_maximum = row, maxima[0], maximum
        if not is_unedited:
            final_row, final_maxima = edited, maxima[1]
            final_maximum = copy_and_edit(row, maxima, item, edit_ids, edit_values, masks, edited)
            if final_maximum == NEGATIVE_INFINITY:
                tokens[i], num_failed = NO_TOKEN_LEFT, num_failed + 1
                continue
        if item.target_token >= 0:
            tokens[i] = item.target_token
        elif is_greedy:
            tokens[i] = first_token_with(final_row, final_maxima, final_maximum)
        else:
            known_mass = row_mass if can_use_row_mass else 0.0
            tokens[i] = sample_token(final_row, final_maxima, final_maximum, item, masses, known_mass, weights)
        normalizers[i] = maximum + np.log(row_mass) if item.num_top >= 0 else np.nan
        ranks[i] = rank_of(row, maxima[0], tokens[i]) if item.with_rank else 0
        k = min(max(item.num_top, 0), top_ids.shape[1])
        logprobs[i] = gather_logprobs(row, maxima[0], normalizers[i], tokens[i], top_ids[i, :k], top_logprobs[i, :k])
    return num_failed


def entry_point() -> Any:
    """Return `run`, compiled once per machine and kept in numba's cache."""
    digest = source_digest(COMPILED_FILES)

    def sampling(*arguments: Any) -> Any:
        return run(*arguments) if digest >= 0 else 0

    return cached(sampling)
