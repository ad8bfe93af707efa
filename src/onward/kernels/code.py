"""Modules of IR to machine code that can be called: from the package, or compiled once per machine and kept by
object_cache."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import llvmlite.binding as llvm

from onward.kernels.compiler import LLVM_LOCK, compile_object, target_machine
from onward.kernels.executable_memory import require_executable_memory
from onward.kernels.object_cache import ObjectCache, kernels_folder, packaged_object
from onward.kernels.recipe import Recipe, Sources
from onward.kernels.targets import Target, host

REVISION = 2
"""Raised when other passes or options make other code of the same IR."""

WAIT_SECONDS = 10.0
"""How long to wait for what another process compiles, many times what it takes: then it is compiled here, too."""
_loaded: list[Any] = []
"""LLVM's engines: code stays as long as the process, because any thread may be in it."""
_shared: dict[tuple[Path, frozenset[str]], Code] = {}
"""By the user's folder of objects and the keys of modules: models that need the same kernels share their code, and one
that is loaded again while a server runs takes no more memory each time."""
_compiled_ahead: dict[str, bytes] = {}
"""Objects of modules that a later call of `load` is to find, by key."""


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

    def again(self) -> Code:
        """Return the same code, for somebody for whom nothing was compiled."""
        return Code(self._engine, was_compiled=False)

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
    others: Sequence[Recipe] = (),
) -> Code:
    """Return the code of modules, their texts (function.Module.text) or how they are written, for `target`, by default
    this machine. What two of them export has different names.

    Objects that the package does not bring are kept in `cached_in`; by default in the user's own cache folder, and then
    modules that were loaded together before are not loaded again. `notify` is called before the first module is
    compiled, rather than found. `others`: modules that will be loaded later in this process, compiled with these, which
    takes less time. Raises executable_memory.NoExecutableMemory.
    """
    chosen = host() if target is None else target
    sources: Sources = {}
    wanted = {module_key(module, chosen, sources): module for module in modules}
    place = kernels_folder(), frozenset(wanted)
    if cached_in is None and (shared := _shared.get(place)) is not None:
        return shared
    objects = ObjectCache(kernels_folder()) if cached_in is None else cached_in
    found = {key: data for key in wanted if (data := _found(key, objects)) is not None}
    missing = {key: module for key, module in wanted.items() if key not in found}
    has_compiled, remark = False, ""
    if missing:
        ahead = {module_key(module, chosen, sources): module for module in others}
        missing |= {key: module for key, module in ahead.items() if key not in found and _found(key, objects) is None}
        done = _Compilation(missing, chosen, objects, notify)
        found |= done.found
        # the folder may not take them
        _compiled_ahead.update((key, done.found[key]) for key in ahead if key in done.found)
        has_compiled, remark = done.has_compiled, max(done.remarks)
    code = link([found[key] for key in wanted], chosen, was_compiled=has_compiled, remark=remark)
    if cached_in is None:
        _shared[place] = code.again()
    return code


def _found(key: str, objects: ObjectCache) -> bytes | None:
    return packaged_object(key) or objects.get(key) or _compiled_ahead.get(key)


class _Compilation:
    """Compiles modules by their keys, or waits for what other processes compile: `found`, their objects."""

    def __init__(
        self,
        modules: Mapping[str, str | Recipe],
        target: Target,
        objects: ObjectCache,
        notify: Callable[[], None] | None,
    ) -> None:
        from onward.kernels.compiler_processes import share  # a start that finds all objects needs no processes

        self.found: dict[str, bytes] = {}
        self.remarks = [""]
        """Why objects could not be kept for the next process."""
        self.has_compiled = False
        self._modules, self._target, self._objects = modules, target, objects
        self._to_notify = [notify] if notify is not None else []
        for seconds in (0.0, WAIT_SECONDS):  # what another process compiles comes last: meanwhile it may be there
            left = [key for key in modules if key not in self.found]
            share([partial(self._obtain, key, seconds) for key in left], compile_object)
        if self.has_compiled:
            gc.collect()  # what writes a text refers to itself, and the collector may be paused until it ignores it

    def _obtain(self, key: str, seconds: float, compile_text: Callable[[str, Target], bytes]) -> None:
        """Find or compile an object, unless another process still compiles it after so many seconds. On any thread."""
        with self._objects.reserved(key, seconds) as is_reserved:
            data = self._objects.get(key)
            if data is None and (is_reserved or seconds):
                self.has_compiled = True
                with suppress(IndexError):
                    self._to_notify.pop()()
                data = compile_text(_text(self._modules[key]), self._target)
                self.remarks.append(self._objects.put(key, data))
            if data is not None:
                self.found[key] = data


def module_key(module: str | Recipe, target: Target, sources: Sources) -> str:
    """Return what the object of a module is kept under. `sources` as in Recipe.digest."""
    digest = module.digest(sources) if isinstance(module, Recipe) else None
    return object_key(f"recipe {digest}" if digest else _text(module), target)


def _text(module: str | Recipe) -> str:
    return module if isinstance(module, str) else module.text()


def link(objects: Iterable[bytes], target: Target, *, was_compiled: bool = True, remark: str = "") -> Code:
    """Return the code of objects that were compiled for `target`, which must be able to run here. What lies in them
    is executed, so their origin must be trusted. Raises executable_memory.NoExecutableMemory."""
    require_executable_memory()
    with LLVM_LOCK:
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine(target))
        for data in objects:
            engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
        _loaded.append(engine)
    return Code(engine, was_compiled, remark)


def object_key(text: str, target: Target) -> str:
    """Return what an object is kept under: a digest of everything that decides its bytes."""
    facts = (REVISION, llvm.llvm_version_info, target.triple, target.cpu, target.features, text)
    return sha256(repr(facts).encode()).hexdigest()
