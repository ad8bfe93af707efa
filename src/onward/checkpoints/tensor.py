"""One tensor of a model file: its shape, type and bytes, which stay in the file until they are used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onward.checkpoints.blocks import Groups, unpack
from onward.checkpoints.types import TensorType


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor. `shape` is in numpy's order: [rows, inputs] for the weights of a layer, [inputs] for a norm's.

    `data` are its bytes, uint8, a view of the mapped file.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    data: NDArray[np.uint8]

    @property
    def num_rows(self) -> int:
        """Rows, counted over all dimensions but the last."""
        return int(np.prod(self.shape[:-1], dtype=np.int64))

    def rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bytes of these rows, uint8 [rows, bytes per row]: a view."""
        return self.data.reshape(self.num_rows, -1)[start:stop]

    def floats(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Return these rows as float32 [rows, inputs]; exactly what the file states, as ggml computes it."""
        stop = self.num_rows if stop is None else stop
        rows = self.rows(start, stop)
        match self.type.name:
            case "F32":
                return rows.view("<f4").astype(np.float32)
            case "F16":
                return rows.view("<f2").astype(np.float32)
            case "BF16":
                return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
        return self.groups(start, stop).floats()

    def groups(self, start: int, stop: int) -> Groups:
        """Return these rows of a quantised tensor as integers and scales."""
        return unpack(self.type, self.rows(start, stop), self.shape[-1])
