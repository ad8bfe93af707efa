"""Parts of a tape: records that are walked at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from onward.kernels.interpreter import MAX_GROUP
from onward.kernels.records import RECORD_WORDS


@dataclass(frozen=True, slots=True)
class Part:
    """Records that are walked at once, int64 [records + 1, 16]."""

    needs: int | None
    """Which weights must be in memory, of those that do not stay there; None: no others."""
    records: NDArray[np.int64]


Written = list[tuple[int | None, list[NDArray[np.int64]]]]
"""Records that are no part yet, with what they need."""


def tape_of(*written: Written) -> list[Part]:
    """Return a tape of records in their order. A part ends when its last record is complete."""
    found: Written = []
    for needs, records in chain.from_iterable(written):
        if found and found[-1][0] == needs:
            found[-1][1].extend(records)
        elif records:
            found.append((needs, [*records]))
    return [Part(needs, _ended(records)) for needs, records in found]


def _ended(records: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    records[-1][-1] = 1
    ends = [-1, *(index for index, record in enumerate(records) if record[-1])]
    assert max(b - a for a, b in pairwise(ends)) <= MAX_GROUP
    return np.array([*records, np.zeros(RECORD_WORDS, np.int64)], np.int64)
