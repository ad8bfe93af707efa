"""Modules of IR to machine code that can be called; compiled once per machine and kept by object_cache."""

from __future__ import annotations

import ctypes
import gc
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from hashlib import sha256
from threading import Lock
from typing import Any, Protocol

import llvmlite.binding as llvm

from onward.kernels.executable_memory import require_executable_memory
from onward.kernels.object_cache import ObjectCache, kernels_folder
from onward.kernels.recipe import Recipe, Sources
from onward.kernels.targets import Target, host

ALLOWED_SYMBOLS = frozenset({"memcpy", "memset", "memmove", "_GLOBAL_OFFSET_TABLE_"})
"""The symbols that an object may leave to be resolved. Waiting and the like are called through pointers that the caller
passes."""

REVISION = 2
"""Raised when other passes or options give other code for the same IR."""

WAIT_SECONDS = 10.0
"""How long to wait for what another process compiles, many times what it takes: then it is compiled here, too."""

_SYMBOL_TABLE = 2
"""ELF's number of such a section."""
_loaded: list[Any] = []
"""LLVM's engines: code stays as long as the process, because any thread may be in it."""
_lock = Lock()


class Functions(Protocol):
    """Compiled functions by name: Code, or what emulates another processor."""

    def function(self, name: str, parameters: Sequence[Any], returns: Any = None) -> Callable[..., Any]: ...


class Code:
    """Machine code in memory. Its functions may be called on any thread, and are, without the GIL."""

    def __init__(self, engine: Any, was_compiled: bool, remark: str = "") -> None:
        self._engine = engine
        self.was_compiled = was_compiled
        self.remark = remark
        """Why it could not be kept for the next process, in a sentence; else ""."""

    def address(self, name: str) -> int:
        """Return where an exported function is. Raises KeyError if there is none of this name."""
        address: int = self._engine.get_function_address(name)
        if not address:
            raise KeyError(name)
        return address

    def function(self, name: str, parameters: Sequence[Any], returns: Any = None) -> Callable[..., Any]:
        """Return an exported function, with ctypes' types. Raises KeyError if there is none of this name."""
        return ctypes.CFUNCTYPE(returns, *parameters)(self.address(name))


def load(
    *modules: str | Recipe,
    target: Target | None = None,
    cached_in: ObjectCache | None = None,
    notify: Callable[[], None] | None = None,
) -> Code:
    """Return the code of modules, their texts (function.Module.text) or how they are written, for `target`, by default
    this machine. What two of them export has different names.

    Objects are kept in `cached_in`, by default the user's own cache folder. `notify` is called before the first module
    is compiled, rather than found there. Raises executable_memory.NoExecutableMemory.
    """
    chosen = host() if target is None else target
    objects = ObjectCache(kernels_folder()) if cached_in is None else cached_in
    sources: Sources = {}
    keys = [_key(module, chosen, sources) for module in modules]
    found = {key: data for key in keys if (data := objects.get(key)) is not None}
    missing, remark, was_compiled = [at for at, key in enumerate(keys) if key not in found], "", False
    for seconds in (0.0, WAIT_SECONDS):  # what another process compiles comes last: meanwhile it may be there
        for at in missing:
            with objects.reserved(keys[at], seconds) as is_reserved:
                data = objects.get(keys[at])
                if data is None and (is_reserved or seconds):
                    if notify is not None and not was_compiled:
                        notify()
                    was_compiled = True
                    data = compile_object(_text(modules[at]), chosen)
                    remark = objects.put(keys[at], data) or remark
                if data is not None:
                    found[keys[at]] = data
        missing = [at for at in missing if keys[at] not in found]
    if was_compiled:
        gc.collect()  # what writes a text refers to itself, and the collector may be paused until it ignores all of it
    return link([found[key] for key in keys], chosen, was_compiled=was_compiled, remark=remark)


def _key(module: str | Recipe, target: Target, sources: Sources) -> str:
    digest = module.digest(sources) if isinstance(module, Recipe) else None
    return object_key(f"recipe {digest}" if digest else _text(module), target)


def _text(module: str | Recipe) -> str:
    return module if isinstance(module, str) else module.text()


def link(objects: Iterable[bytes], target: Target, *, was_compiled: bool = True, remark: str = "") -> Code:
    """Return the code of objects that were compiled for `target`, which must be able to run here. What lies in them
    is executed, so their origin must be trusted. Raises executable_memory.NoExecutableMemory."""
    require_executable_memory()
    with _lock:
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine(target))
        for data in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
        _loaded.append(engine)
    return Code(engine, was_compiled, remark)


def object_key(text: str, target: Target) -> str:
    """Return what an object is kept under: a digest of everything that decides its bytes."""
    facts = (REVISION, llvm.llvm_version_info, target.triple, target.cpu, target.features, text)
    return sha256(repr(facts).encode()).hexdigest()


def compile_object(text: str, target: Target) -> bytes:
    """Return a module's object file, for any target that LLVM knows. Raises RuntimeError for invalid IR, and
    for what would call a library."""
    with _lock:
        machine = _target_machine(target)
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


def _target_machine(target: Target) -> Any:
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
