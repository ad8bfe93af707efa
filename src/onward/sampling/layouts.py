"""What Python and the kernels share in memory: the records of a step and of a work item (of a chain: chains.py)."""

from __future__ import annotations

import ctypes

import numpy as np

BLOCK_LOGITS = 512
"""Logits per block of a row: 256 to 1024 measure the same at 151,936 logits."""
PADDING = 16
"""Numbers after the end of an array, which kernels read and overwrite because they move 16 at a time."""


class Step(ctypes.Structure):
    """What one thread needs of a step. N work items, P rows of logits, B blocks of the vocabulary, E logit edits:

    logits        float32 [P, vocab_size]    read only
    items         WORK_ITEM_DTYPE [N]        read only (choice.py)
    chains        chains.CHAIN_DTYPE [N]     read, except next_mu; used where an item's `chain` is 1
    edit_ids      int64 [E]                  read only; edit_values float64 [E], read only
    masks         uint32 [M, mask_words]     read only (masks.py); row 0 stands for no mask
    tokens        int64 [N]                  results, written, as are
    logprobs      float32 [N]
    normalizers   float64 [N]
    ranks         int64 [N]                  0 where the item does not ask for it
    top_ids       int64 [N, top_width]
    top_logprobs  float32 [N, top_width]

    The rest is scratch, of this thread alone:

    tail          float32 [BLOCK_LOGITS]
    edited        float32 [B * BLOCK_LOGITS]
    maxima        float32 [2, B + PADDING]   of the row, and of its edited copy
    masses        float64 [2, B]           of the row, and of what is being sampled from
    weights       float32 [BLOCK_LOGITS]
    sorted        float32 [vocab_size + PADDING], as are spare (uint32) and sorted_weights; of chains only
    counts        uint32 [3, NUM_BUCKETS]    of chains only
    """

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("vocab_size", "num_blocks", "mask_words", "top_width")),
        *((name, ctypes.c_void_p) for name in ("logits", "items", "chains", "edit_ids", "edit_values", "masks")),
        *(
            (name, ctypes.c_void_p)
            for name in ("tokens", "logprobs", "normalizers", "ranks", "top_ids", "top_logprobs")
        ),
        *((name, ctypes.c_void_p) for name in ("tail", "edited", "maxima", "masses", "weights")),
        *((name, ctypes.c_void_p) for name in ("sorted", "spare", "sorted_weights", "counts")),
    )


WORK_ITEM_DTYPE = np.dtype(
    [
        ("row", np.int64),  # row of the logits
        ("target_token", np.int64),  # the token to score, or -1: sample one
        ("num_top", np.int64),  # how many of the most likely tokens to report; -1: no log-probability either
        ("greedy", np.int64),  # 1: the most likely token
        ("chain", np.int64),  # 1: sample by the step's chain of this item
        ("top_k", np.int64),  # 0: off
        ("seed", np.uint64),
        ("choice", np.uint64),
        ("position", np.uint64),
        ("temperature", np.float64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("presence_penalty", np.float64),
        ("frequency_penalty", np.float64),
        ("repetition_penalty", np.float64),
        ("penalties_start", np.int64),  # edits[penalties_start:biases_start] are (generated token, its count),
        ("biases_start", np.int64),  # edits[biases_start:bans_start] are (token, value to add),
        ("bans_start", np.int64),  # edits[bans_start:edits_end] are (banned token, unused)
        ("edits_end", np.int64),
        ("mask", np.int64),  # row of the step's masks; 0: all tokens are allowed
        ("with_rank", np.int64),  # 1: count the token's rank among the raw logits
    ],
    align=True,
)
"""One token to sample or to score. `edits` are the parallel arrays of sampler.LogitEdits."""
