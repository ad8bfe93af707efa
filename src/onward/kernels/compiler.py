"""From a module's text to an object file, for any processor that LLVM knows."""

from __future__ import annotations

import struct
from functools import cache
from threading import Lock
from typing import Any

import llvmlite.binding as llvm

from onward.kernels.targets import Target

ALLOWED_SYMBOLS = frozenset({"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_"})
"""The symbols that an object may leave to be resolved. Waiting and the like are called through pointers that the caller
passes."""

LLVM_LOCK = Lock()
_SYMBOL_TABLE = 2
"""ELF's number of such a section."""


def compile_object(text: str, target: Target) -> bytes:
    """Return a module's object file, for any target that LLVM knows. Raises RuntimeError for invalid IR, and
    for what would call a library."""
    with LLVM_LOCK:
        machine = target_machine(target)
        module = llvm.parse_assembly(text)
        module.triple = target.triple
        module.verify()
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        # kernels say what is a vector and what is unrolled; LLVM would take seconds, and reassociate integer sums
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        data: bytes = machine.emit_object(module)
    unknown = undefined_symbols(data) - ALLOWED_SYMBOLS
    if unknown:  # LLVM would end the process while loading it
        raise RuntimeError(
            f"compiled code calls {', '.join(sorted(unknown))}, which no processor has an instruction for"
        )
    return data


def target_machine(target: Target) -> Any:
    """Return a new machine: an engine owns the one that it is created with."""
    _initialize()
    # sections may be loaded further apart than 2 GiB, once models and caches lie between: x86-64 code that reached its
    # constants by 32 bits would end the process while it is loaded
    reloc, model = ("static", "large") if target.architecture == "x86_64" else ("pic", "default")
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc=reloc, codemodel=model, jit=True
    )


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()


def undefined_symbols(data: bytes) -> frozenset[str]:
    """Return the names that a 64-bit ELF object, Linux's format, leaves to be resolved; nothing for other formats."""
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
