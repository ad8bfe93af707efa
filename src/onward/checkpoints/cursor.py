"""Reads little-endian values from a buffer; whatever lies beyond its end is an error."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from onward.errors import CheckpointError

MAX_STRING_BYTES = 16_000_000
"""Of one string in a file's metadata. Chat templates have thousands."""
MAX_ARRAY_STRINGS = 1 << 20
"""Strings of one array: four times the largest known vocabulary, twice the longest known list of merges."""
MAX_STRINGS = 1 << 21
"""Strings of all arrays of a file together."""
MAX_TEXT_BYTES = 128_000_000
"""Of all strings of a file's metadata together: ten times the largest known vocabulary with its merges. They are
copied, while a file of zeros takes no space on the disk."""
MAX_ARRAY_NUMBERS = 1 << 22
"""Numbers of one array: 16 times the tokens of the largest known vocabulary."""
MAX_BEGINNING_BYTES = 192_000_000
"""Of a file before its tensors: texts, and as many numbers as no vocabulary has."""
_WINDOW_BYTES = 1 << 18
"""What is read at a time."""
_STRING, _ARRAY = 8, 9
_NUMBERS: dict[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
"""numpy's codes of the numeric types of metadata values; 7 are booleans."""
_BOOLEAN = 7
_LENGTH = struct.Struct("<Q")


class Strings(Sequence[str]):
    """Strings of a file, each after its length, which are decoded whenever they are asked for: a vocabulary and its
    merges are 300,000, and most processes that open a model's file use none. Bytes that are not UTF-8 become U+FFFD."""

    def __init__(self, stored: memoryview, count: int) -> None:
        """`stored`: exactly so many strings with their lengths."""
        self.stored = stored
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        stored, position, length_at = bytes(self.stored), 0, _LENGTH.unpack_from
        for _ in range(self._count):
            begin = position + _LENGTH.size
            position = begin + length_at(stored, position)[0]
            yield stored[begin:position].decode("utf-8", "replace")

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return list(self)[index]


MetadataValue = str | int | float | bool | list[str] | list[int] | list[float] | list[bool] | NDArray[Any] | Strings
"""A value in a file's metadata. Arrays of a GGUF file are views of the file: numbers and booleans of numpy's type,
texts as Strings."""


class Cursor:
    """A position in a file, which begins at 0. `where` names it in messages.

    `read` returns so many bytes (its second argument) from a place on, which are within the file. Values stay what they
    are, whatever becomes of the file.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int, where: str) -> None:
        self.position = 0
        self.size = size
        """Bytes of the file."""
        self._read = read
        self._window, self._window_begin = b"", 0
        """What was read last, and where in the file it begins."""
        self._num_strings = self._num_text_bytes = 0
        self.where = where

    @classmethod
    def of_bytes(cls, data: bytes, where: str) -> Cursor:
        """Return a cursor of what is in memory."""
        return cls(lambda begin, size: data[begin : begin + size], len(data), where)

    def number(self, code: str) -> int:
        """Return the next number of a struct code, and advance past it. Raises CheckpointError."""
        size = struct.calcsize("<" + code)
        (value,) = struct.unpack("<" + code, self._take(size))
        return int(value)

    def string(self) -> str:
        """Return the next string; bytes that are not UTF-8 become U+FFFD. Raises CheckpointError."""
        length = self.number("Q")
        if length > MAX_STRING_BYTES:
            raise self.broken(f"a string of {length} bytes")
        return self._take_text(length).decode("utf-8", "replace")

    def value(self) -> MetadataValue:
        """Return the next metadata value, which begins with its type. Raises CheckpointError."""
        kind = self.number("I")
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        single: int | float | bool = self._numbers(kind, 1)[0].item()
        return single

    def _array(self) -> MetadataValue:
        kind, count = self.number("I"), self.number("Q")
        if kind != _STRING and count > MAX_ARRAY_NUMBERS:
            raise self.broken(f"a list of {count} numbers")
        return self._strings(count) if kind == _STRING else self._numbers(kind, count)

    def _numbers(self, kind: int, count: int) -> NDArray[Any]:
        if kind not in _NUMBERS:
            raise self.broken(f"a value of the unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        found = np.frombuffer(self._take(dtype.itemsize * count), dtype)
        return found != 0 if kind == _BOOLEAN else found

    def _strings(self, count: int) -> Strings:
        """Return `count` strings. In one pass: vocabularies have hundreds of thousands."""
        self._num_strings += count
        if count > min(MAX_ARRAY_STRINGS, self.remaining // _LENGTH.size) or self._num_strings > MAX_STRINGS:
            raise self.broken(f"a list of {count} strings")
        position, first, last = self.position, 0, -1
        length_at, size = _LENGTH.unpack_from, _LENGTH.size
        for _ in range(count):
            if position > last:
                self._require_little_text(position - self.position)
                self._look_at(position, size)
                window, first = self._window, self._window_begin
                last = first + len(window) - size
            position += size + length_at(window, position - first)[0]
        return Strings(memoryview(self._take_text(position - self.position)), count)

    @property
    def remaining(self) -> int:
        """Bytes after the position."""
        return self.size - self.position

    def _take_text(self, count: int) -> bytes:
        self._require_little_text(count)
        self._num_text_bytes += count
        return self._take(count)

    def _require_little_text(self, more: int) -> None:
        if self._num_text_bytes + more > MAX_TEXT_BYTES:
            raise self.broken(f"more than {MAX_TEXT_BYTES // 1_000_000} MB of text")

    def _take(self, count: int) -> bytes:
        begin, self.position = self.position, self.position + count
        if count > _WINDOW_BYTES:
            self._require(begin, count)
            return self._read(begin, count)
        self._look_at(begin, count)
        return self._window[begin - self._window_begin : self.position - self._window_begin]

    def _look_at(self, begin: int, count: int) -> None:
        """Have bytes of the file in the window, and those that follow them. Raises CheckpointError."""
        self._require(begin, count)
        if not 0 <= begin - self._window_begin <= len(self._window) - count:
            self._window = self._read(begin, min(_WINDOW_BYTES, self.size - begin))
            self._window_begin = begin

    def _require(self, begin: int, count: int) -> None:
        if begin + count > self.size:
            raise self._ends_early()
        if begin + count > MAX_BEGINNING_BYTES:
            raise self.broken(f"more than {MAX_BEGINNING_BYTES // 1_000_000} MB of metadata")

    def _ends_early(self) -> CheckpointError:
        return self.broken("an end in the middle of a value: it is cut off")

    def broken(self, what: str) -> CheckpointError:
        """Return the error for a file that contains `what`, which no intact file can."""
        return CheckpointError(f"{self.where} is broken (it has {what}): download it again.")
