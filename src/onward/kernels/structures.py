"""Structures in memory, by the names of their fields: what Python lays out and kernels read and write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onward.kernels.function import Function
from onward.kernels.values import F32, F64, I32, I64, PTR, Type, Value

_NUMPY = {("i", 8): I64, ("u", 8): I64, ("i", 4): I32, ("u", 4): I32, ("f", 8): F64, ("f", 4): F32}
_FORMATS = {"P": PTR, "q": I64, "l": I64, "d": F64, "f": F32, "i": I32}
"""Types of ctypes by their codes; "l" is 64 bits wherever it is what c_int64 is."""


class Structure:
    """Where the fields of a structure are: name → (type, offset in bytes)."""

    def __init__(self, fields: Mapping[str, tuple[Type, int]], size: int, alignment: int = 4) -> None:
        self.fields, self.size, self._alignment = fields, size, alignment

    @classmethod
    def of_words(cls, **fields: Type) -> Structure:
        """Return a structure of fields of eight bytes each."""
        return cls({name: (t, 8 * i) for i, (name, t) in enumerate(fields.items())}, 8 * len(fields))

    @classmethod
    def of_dtype(cls, dtype: Any) -> Structure:
        """Return the structure that a numpy dtype is."""
        fields = dtype.fields.items()
        return cls({name: (_NUMPY[t.kind, t.itemsize], offset) for name, (t, offset) in fields}, dtype.itemsize)

    @classmethod
    def of_structure(cls, structure: Any) -> Structure:
        """Return the structure that a ctypes.Structure is."""
        fields = {name: (_FORMATS[t._type_], getattr(structure, name).offset) for name, t in structure._fields_}
        return cls(fields, max(offset for _, offset in fields.values()) + 8)

    def offset(self, name: str) -> int:
        """Return where a field begins, in bytes."""
        return self.fields[name][1]

    def load(self, f: Function, pointer: Value, name: str) -> Value:
        """Emit the load of a field of the structure at `pointer`."""
        t, offset = self.fields[name]
        return f.load(pointer, t, offset, self._aligned(t))

    def store(self, f: Function, pointer: Value, name: str, value: Value | float) -> None:
        """Emit the store of a field; numbers are converted to its type."""
        t, offset = self.fields[name]
        f.store(value if isinstance(value, Value) else f.const(t, value), pointer, offset, self._aligned(t))

    def _aligned(self, t: Type) -> int:
        return 4 if t == F32 else self._alignment


class View:
    """A structure at a pointer: `view.field` loads, `set` stores."""

    def __init__(self, f: Function, pointer: Value, structure: Structure) -> None:
        self._f, self._structure = f, structure
        self.pointer = pointer

    @classmethod
    def on_stack(cls, f: Function, structure: Structure) -> View:
        return cls(f, f.stack(I64, structure.size // 8), structure)

    def __getattr__(self, name: str) -> Value:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._structure.load(self._f, self.pointer, name)

    def set(self, **values: Value | float) -> None:
        for name, value in values.items():
            self._structure.store(self._f, self.pointer, name, value)
