"""What a checkpoint states about its model, with checks: numbers, texts and lists by GGUF's names without the
architecture's prefix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

import numpy as np

from onward.checkpoints.cursor import MetadataValue, Strings
from onward.errors import CheckpointError

MAX_NUMBER = 1 << 31
MAX_LAYERS = 512
"""Of a model; llama.cpp's limit, too (src/llama-hparams.h)."""
MAX_SCALE = 1e18
"""What anything is multiplied by: float32 has it, and the product of two."""
MAX_CONVOLUTION = 64
"""Positions that a convolution may read; those of all known models read 3 or 4."""
WINDOW = "attention.sliding_window"
"""Tokens that a layer attends to. Refused for architectures that do not use it, where it is smaller than the context.
"""
PREDICTING = "nextn_predict_layers"
"""How many of the last layers of a GGUF file predict several tokens at once."""
LISTS = (list, np.ndarray, Strings)
"""What a value is that is a list."""
_KINDS = {int: "iu", float: "f"}
"""Kinds of numpy's types by Python's type."""


def is_layer_count(value: object) -> TypeGuard[int]:
    """Return whether a value is a number of layers that a model may have. `Parameters.num_layers` refuses any other."""
    return type(value) is int and 0 < value <= MAX_LAYERS


def listed_layers(listed: Iterable[object]) -> frozenset[object]:
    """Return the layers of a list in a configuration, to be looked up: it may have hundreds of thousands of entries,
    of any kind."""
    return frozenset(each for each in listed if isinstance(each, int | float))


class Parameters:
    """The metadata of one model. `where` names the file in messages."""

    def __init__(self, metadata: Mapping[str, MetadataValue], where: str) -> None:
        """Raises CheckpointError if no architecture is stated."""
        self.where = where
        self.metadata = metadata
        self.architecture = self.text("general.architecture", whole_name=True)

    def integer(self, name: str, default: int | None = None, *, minimum: int = 0) -> int:
        """Return a whole number from `minimum` to 2**31. Raises CheckpointError for anything else, or if it is
        absent."""
        value = self._get(name, default)
        if type(value) is not int or not minimum <= value <= MAX_NUMBER:
            raise self._wrong(name, value)
        return value

    def num_layers(self) -> int:
        """Return the number of layers. Raises CheckpointError as `integer` does."""
        found = self.integer("block_count", minimum=1)
        if found > MAX_LAYERS:
            raise self._wrong("block_count", found)
        return found

    def num_own_layers(self) -> int:
        """Return how many layers of a GGUF file compute a token: those that predict several at once, the last ones, do
        not. Raises CheckpointError as `integer` does, and if none is left."""
        stated, predicting = self.num_layers(), self.integer(PREDICTING, 0)
        if predicting >= stated:
            raise CheckpointError(
                f"{self.where} has {stated} layers ('block_count'), of which {predicting} predict several tokens "
                f"({PREDICTING!r}): it is not a complete model."
            )
        return stated - predicting

    def real(self, name: str, default: float | None = None) -> float:
        """Return a finite number. Raises CheckpointError as `integer` does."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1e30 < value < 1e30:
            raise self._wrong(name, value)
        return float(value)

    def text(self, name: str, default: str | None = None, *, whole_name: bool = False) -> str:
        """Return a text. `whole_name`: the name has no architecture's prefix. Raises CheckpointError."""
        value = self.metadata.get(name, default) if whole_name else self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value)
        return value

    def switch(self, name: str, default: bool) -> bool:
        """Return whether something is on. Raises CheckpointError as `integer` does."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value)
        return value

    def switches(self, name: str, count: int) -> list[bool] | None:
        """Return whether something is on in each of `count` layers, None if nothing is stated. A number n means that in
        every n layers the first n - 1 are on and the last is off; 0 means that it is on in all. Raises CheckpointError
        as `integer` does."""
        value = self._get(name, None)
        if value is None:
            return None
        if type(value) is int and 0 <= value <= MAX_NUMBER:
            return [value == 0 or layer % value < value - 1 for layer in range(count)]
        if not isinstance(value, LISTS) or len(value) != count:
            raise self._wrong(name, value, f"{count} layers")
        return [bool(each) for each in value]

    def head_size(self, usual: int | None = None, end: str = "") -> int:
        """Return the size of a head's keys and values, which are stated under names with this end. Raises
        CheckpointError as `integer` does, and if they differ."""
        found = self.integer(f"attention.key_length{end}", usual, minimum=1)
        if self.integer(f"attention.value_length{end}", found) != found:
            raise CheckpointError(
                f"{self.where} has keys and values of different sizes, which Onward does not compute."
            )
        return found

    def same_in_layers(self, name: str, count: int, default: int | None = None, *, may_lack: bool = False) -> int:
        """Return a whole number of at least one that may be stated once, or for each of `count` layers. `may_lack`: a
        layer may state zero, which does not count. Raises CheckpointError as `integer` does, and for layers that
        differ."""
        numbers = set(self.in_layers(name, count, default, may_lack=may_lack))
        if may_lack:
            numbers -= {0}
        if len(numbers) > 1:
            raise self.unequal(name)
        if not numbers:
            raise self._wrong(name, 0)
        return numbers.pop()

    def unequal(self, name: str) -> CheckpointError:
        """Return the error of layers that differ in a number."""
        return CheckpointError(f"{self.where} has layers of different sizes ({name!r}), which Onward does not compute.")

    def in_layers(self, name: str, count: int, default: int | None = None, *, may_lack: bool = False) -> list[int]:
        """Return a whole number of at least one for each of `count` layers, which may be stated once. `may_lack`: or
        zero, in a list. Raises CheckpointError as `integer` does."""
        value = self._get(name, default)
        if not isinstance(value, LISTS):
            return [self.integer(name, default, minimum=1)] * count
        if len(value) != count:
            raise self._wrong(name, value, f"{count} layers")
        numbers = [each.item() if isinstance(each, np.generic) else each for each in value]
        least = 0 if may_lack else 1
        if any(type(each) is not int or not least <= each <= MAX_NUMBER for each in numbers):
            raise self._wrong(name, numbers)
        return [int(each) for each in numbers]

    def has(self, name: str) -> bool:
        """Return whether the name is stated."""
        return f"{self.architecture}.{name}" in self.metadata

    def list_of(self, kind: type, name: str, count: int | None = None) -> list[Any] | None:
        """Return a list of whole numbers, of numbers or of texts (`kind` is int, float or str) from the whole metadata,
        None if there is none. Raises CheckpointError for other values, and for another number of them than `count`."""
        value = self.metadata.get(name)
        if value is None:
            return None
        if not isinstance(value, LISTS):
            raise self._wrong(name, value)
        if count is not None and len(value) != count:
            raise CheckpointError(f"{self.where} has {len(value)} entries of {name!r} instead of {count}.")
        if isinstance(value, np.ndarray):
            if len(value) and value.dtype.kind not in _KINDS.get(kind, ""):
                raise self._wrong(name, "a list of something else")
            return list(value.tolist())
        found = list(value)
        if not all(type(item) is kind for item in found):
            raise self._wrong(name, "a list of something else")
        return found

    def own(self, name: str) -> MetadataValue | None:
        """Return a value of any kind by its name without the architecture's prefix, None if there is none."""
        return self.metadata.get(f"{self.architecture}.{name}")

    def whole(self, name: str) -> MetadataValue | None:
        """Return a value of any kind by its whole name, None if there is none."""
        return self.metadata.get(name)

    def _get(self, name: str, default: object) -> object:
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def _wrong(self, name: str, value: object, needed: str = "") -> CheckpointError:
        if needed:
            found = f"{len(value)} values" if isinstance(value, LISTS) else str(value)[:80]
            return CheckpointError(f"{self.where} states {found} as {name!r}, but has {needed}.")
        if isinstance(value, LISTS):
            value = f"{len(value)} values"
        if value is None:
            return CheckpointError(f"{self.where} does not state {name!r}: it is not a complete model.")
        return CheckpointError(
            f"{self.where} states {str(value)[:80]!r} as {name!r}, with which Onward cannot compute."
        )
