"""The record of a chain of filters or of mirostat, as Python lays it out and kernels read it."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
from numpy.typing import NDArray

from onward.sampling.filters import FILTERS, PARAMETERS
from onward.sampling.params import SamplingParams

ORDER_BITS = 4
"""Per filter of the record's `order`."""
_UNBOUNDED = 1 << 62

CHAIN_DTYPE = np.dtype(
    [
        ("order", np.uint64),  # the filters' numbers in the table, from 1, ORDER_BITS each, the first one lowest
        ("floor", np.float64),  # no token is kept whose logit is this far below the maximum; infinity: unknown
        ("num_sorted", np.int64),  # no token is kept after this rank
        *((each.name, np.float64 if isinstance(each.neutral, float) else np.int64) for each in PARAMETERS.values()),
        ("mirostat", np.int64),  # its version; 0: the chain of filters
        ("tau", np.float64),
        ("eta", np.float64),
        ("mu", np.float64),
        ("next_mu", np.float64),  # written
    ],
    align=True,
)


def chain_record(params: SamplingParams) -> NDArray[np.void]:
    """Return CHAIN_DTYPE, 0-dimensional, with all fields that are the same for every token of a choice."""
    record = np.zeros((), CHAIN_DTYPE)
    for name in PARAMETERS:
        record[name] = params.value(name)
    numbers = (list(FILTERS).index(name) + 1 for name in params.chain)
    record["order"] = sum(number << (ORDER_BITS * place) for place, number in enumerate(numbers))
    record["floor"], record["num_sorted"] = _bounds(params)
    if params.mirostat is not None:
        record["mirostat"], record["tau"], record["eta"] = astuple(params.mirostat)
    return record


def _bounds(params: SamplingParams) -> tuple[float, int]:
    """Return how far below the maximum no token is kept, and a rank after which none is: the rest need not be sorted.
    Infinity and _UNBOUNDED where that is not known without the ranking.

    min_p and top_k say so where nothing acts before them but each other and a fixed temperature.
    """
    floor, count, scale = math.inf, _UNBOUNDED, 1.0
    for name in params.chain:
        if name == "temperature" and not params.value("dynatemp_range"):
            scale = params.temperature
        elif name == "min_p":
            floor = scale * (1e-4 - math.log(params.min_p))  # a little more, because weights are rounded
        elif name == "top_k":
            count = params.top_k
        else:
            break
    return floor, count
