"""What an object file needs from outside: symbols that it does not define. Of ELF, the format of Linux."""

from __future__ import annotations

import struct

_SYMBOL_TABLE = 2


def undefined_symbols(data: bytes) -> frozenset[str]:
    """Return the names that a 64-bit ELF object leaves to be resolved; nothing for other formats."""
    if data[:5] != b"\x7fELF\x02":
        return frozenset()
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQII", data, sections_at + size * i) for i in range(count)]
    found = set()
    for _, kind, _, _, start, length, strings, _ in sections:
        if kind == _SYMBOL_TABLE:
            found |= {_name(data, sections[strings][4] + name) for name in _undefined(data, start, length)}
    return frozenset(found)


def _undefined(data: bytes, start: int, length: int) -> list[int]:
    """Return where the names of a table's undefined symbols are among its strings."""
    symbols = struct.iter_unpack("<IBBHQQ", data[start : start + length])
    return [name for name, _, _, section, _, _ in symbols if name and not section]


def _name(data: bytes, start: int) -> str:
    return data[start : data.index(b"\0", start)].decode()
