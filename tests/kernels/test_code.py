"""Compiled objects: kept once, under everything that decides them, and used only where they can be trusted."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path

import llvmlite.binding as llvm
import pytest

from onward import kernels as kernel_package
from onward.file_locks import NoLocks
from onward.kernels import code as code_module
from onward.kernels import executable_memory, object_cache
from onward.kernels.code import load, object_key
from onward.kernels.compiler import compile_object
from onward.kernels.executable_memory import NoExecutableMemory
from onward.kernels.function import Function, Module
from onward.kernels.object_cache import ObjectCache, file_of, kernels_folder
from onward.kernels.recipe import Recipe
from onward.kernels.targets import Target, host
from onward.kernels.values import I64
from onward.private_files import PrivateFolder
from tests.waiting import PATIENCE_SECONDS, wait_for

needs_owners = pytest.mark.skipif(os.name == "nt", reason="owners and modes of files are those of POSIX")


def module_that_adds(number: int, name: str = "test") -> str:
    module = Module("test")
    f = Function(module, name, [I64], I64, exported=True)
    f.ret(f.args[0] + number)
    return module.text()


@pytest.fixture
def cache(tmp_path: Path) -> ObjectCache:
    return ObjectCache(tmp_path / "kernels")


def only_object(cache: ObjectCache) -> Path:
    (found,) = cache._folder.glob("*.o")
    return found


def was_compiled(cache: ObjectCache) -> bool:
    """Load a module that adds 3, check that it does, and return whether it was compiled."""
    code = load(module_that_adds(3), cached_in=cache)
    assert code.function("test", [ctypes.c_int64], ctypes.c_int64)(4) == 7
    return code.was_compiled


def test_a_module_is_compiled_once(cache: ObjectCache) -> None:
    assert was_compiled(cache) and not was_compiled(cache)
    assert load(module_that_adds(4), cached_in=cache).was_compiled


def test_a_compilation_is_announced_before_it_starts_and_a_cached_object_is_not(cache: ObjectCache) -> None:
    heard: list[bool] = []
    for _ in range(2):
        load(module_that_adds(5), cached_in=cache, notify=lambda: heard.append(cache.get("any") is None))
    assert heard == [True]


def test_what_was_compiled_with_other_modules_is_not_compiled_again(cache: ObjectCache) -> None:
    heard: list[None] = []
    one, two, three = (module_that_adds(number, f"add_{number}") for number in (1, 2, 3))
    for modules in ((one, two), (two, three), (three, one)):
        code = load(*modules, cached_in=cache, notify=lambda: heard.append(None))
        names = [name for name in ("add_1", "add_2", "add_3") if any(f'"{name}"' in module for module in modules)]
        found = [code.function(name, [ctypes.c_int64], ctypes.c_int64)(4) for name in names]
        assert found == [4 + int(name[-1]) for name in names] and len(found) == 2
    assert len(heard) == 2 and not code.was_compiled and len(list(cache._folder.glob("*.o"))) == 3


def test_the_writer_of_a_module_is_freed_once_it_is_compiled(cache: ObjectCache) -> None:
    """Although the garbage collector is paused, as at the start of a process until existing objects are frozen."""
    written: list[weakref.ref[Module]] = []

    def text() -> str:
        module = Module("test")
        module.itself = module  # type: ignore[attr-defined]
        f = Function(module, "test", [I64], I64, exported=True)
        f.ret(f.args[0])
        written.append(weakref.ref(module))
        return module.text()

    gc.disable()
    try:
        assert load(Recipe(text, ("test",), (kernel_package,)), cached_in=cache).was_compiled
        assert [module() for module in written] == [None]
    finally:
        gc.enable()


def test_an_unknown_function_is_a_key_error(cache: ObjectCache) -> None:
    with pytest.raises(KeyError, match="other"):
        load(module_that_adds(3), cached_in=cache).function("other", [])


def test_a_key_covers_the_module_and_the_processor() -> None:
    text, target = module_that_adds(3), host()
    others = [
        object_key(module_that_adds(4), target),
        object_key(text, replace(target, cpu="other")),
        object_key(text, replace(target, features="-avx")),
        object_key(text, replace(target, triple="other-unknown-linux-gnu")),
    ]
    assert len({object_key(text, target), *others}) == 5


def test_an_altered_object_is_compiled_again(cache: ObjectCache) -> None:
    was_compiled(cache)
    path = only_object(cache)
    whole = path.read_bytes()
    for altered in (whole[:-1], whole[:-1] + b"x", whole[:20], b"", b"x" * 4096):
        path.write_bytes(altered)
        assert was_compiled(cache)
        assert path.read_bytes() == whole


def test_an_object_under_another_key_is_not_used(cache: ObjectCache) -> None:
    was_compiled(cache)
    path = only_object(cache)
    path.rename(path.with_stem("0" * 64))
    assert cache.get("0" * 64) is None


@needs_owners
def test_links_are_not_followed(cache: ObjectCache, tmp_path: Path) -> None:
    was_compiled(cache)
    path = only_object(cache)
    elsewhere = tmp_path / "elsewhere.o"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert was_compiled(cache)
    linked = ObjectCache(tmp_path / "linked")
    linked._folder.symlink_to(cache._folder)
    assert was_compiled(linked) and linked.get(path.stem) is None


@needs_owners
@pytest.mark.parametrize("mode", [0o770, 0o777, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(cache: ObjectCache, mode: int) -> None:
    was_compiled(cache)
    cache._folder.chmod(mode)
    assert was_compiled(cache)


@needs_owners
def test_a_folder_that_others_may_read_is_closed(cache: ObjectCache) -> None:
    cache._folder.mkdir(mode=0o755)
    was_compiled(cache)
    assert cache._folder.stat().st_mode & 0o777 == 0o700 and only_object(cache).stat().st_mode & 0o077 == 0


@needs_owners
def test_a_file_that_others_may_write_to_is_not_used(cache: ObjectCache) -> None:
    was_compiled(cache)
    only_object(cache).chmod(0o620)
    assert was_compiled(cache)


@needs_owners
def test_a_file_of_another_user_is_not_used(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    was_compiled(cache)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert was_compiled(cache)


def test_an_object_of_the_package_is_used_unless_another_llvm_has_compiled_it(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = module_that_adds(3)
    key = object_key(text, host())
    (tmp_path / f"{key}.o").write_bytes(file_of(key, compile_object(text, host())))
    monkeypatch.setattr(object_cache, "PACKAGED", tmp_path)
    assert not was_compiled(cache) and not cache._folder.exists()
    monkeypatch.setattr(llvm, "llvm_version_info", (99, 0, 0))
    assert was_compiled(cache) and not was_compiled(cache)


def test_an_object_of_the_package_that_was_cut_off_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LLVM would end the process."""
    text = module_that_adds(3)
    key = object_key(text, host())
    whole = file_of(key, compile_object(text, host()))
    monkeypatch.setattr(object_cache, "PACKAGED", tmp_path)
    for index, cut in enumerate((whole[:-1], whole[: len(whole) // 2], whole[:20], b"", bytes(len(whole)))):
        (tmp_path / f"{key}.o").write_bytes(cut)
        assert was_compiled(ObjectCache(tmp_path / f"kernels {index}"))


def test_a_cache_that_cannot_be_written_is_not_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    cache = ObjectCache(tmp_path / "file" / "kernels")
    assert was_compiled(cache) and was_compiled(cache)


def test_a_full_disk_leaves_no_part_of_a_file(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: str, target: str, **folders: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    assert was_compiled(cache)
    assert not list(cache._folder.iterdir())
    reason = "No space left on device; 1.2 MB are needed there"
    remark = f"Compiled kernels cannot be kept in {cache._folder} ({reason}): every start compiles them again."
    assert cache.put("a", bytes(1_200_000)) == remark


class Compiler:
    """Stands in for the compiler: records the modules of each thread, and compiles when it is allowed to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.modules: dict[str, list[str]] = {}
        self.may_compile = threading.Event()
        monkeypatch.setattr(code_module, "compile_object", self._compile)

    def _compile(self, text: str, target: Target) -> bytes:
        self.modules.setdefault(threading.current_thread().name, []).append(text)
        assert self.may_compile.wait(PATIENCE_SECONDS)
        return compile_object(text, target)

    def started(self, thread: str) -> int:
        return len(self.modules.get(thread, ()))


def test_those_that_start_at_once_share_the_modules_and_none_waits_while_one_is_left(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads, whose locks keep each other out as those of processes do."""
    compiler, found = Compiler(monkeypatch), {}
    one, two, three = (module_that_adds(number, f"add_{number}") for number in (1, 2, 3))

    def run(*modules: str) -> None:
        code = load(*modules, cached_in=cache)
        found[threading.current_thread().name] = [
            code.function(f"add_{number}", [ctypes.c_int64], ctypes.c_int64)(4) for number in (1, 2)
        ]

    first = threading.Thread(target=run, args=(one, two), name="first")
    second = threading.Thread(target=run, args=(one, two, three), name="second")
    first.start()
    wait_for(lambda: compiler.started("first"))
    second.start()
    wait_for(lambda: compiler.started("second"))
    compiler.may_compile.set()
    for thread in (first, second):
        thread.join(PATIENCE_SECONDS)
    assert compiler.modules["first"][0] == one and compiler.modules["second"][0] == two
    assert sorted([*compiler.modules["first"], *compiler.modules["second"]]) == sorted([one, two, three])
    assert found == {"first": [5, 6], "second": [5, 6]}
    assert sorted(path.suffix for path in cache._folder.iterdir()) == [".o"] * 3


def test_a_module_is_compiled_though_another_process_that_has_reserved_it_hangs(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_module, "WAIT_SECONDS", 0.01)
    with cache.reserved(object_key(module_that_adds(3), host()), 0.0) as is_reserved:
        assert is_reserved and was_compiled(cache) and not was_compiled(cache)


def test_what_a_killed_process_had_reserved_is_free(cache: ObjectCache) -> None:
    with cache.reserved("a", 0.0):
        (left,) = cache._folder.iterdir()
    left.touch()
    with cache.reserved("a", 0.0) as is_reserved, cache.reserved("a", 0.0) as by_another:
        assert is_reserved and not by_another
    assert not left.exists()


@pytest.mark.parametrize("error", [NoLocks(38, "Function not implemented"), OSError(5, "Input/output error")], ids=str)
def test_without_locks_on_files_everybody_compiles(
    error: OSError, cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: int, seconds: float) -> bool:
        raise error

    monkeypatch.setattr(object_cache, "wait_for_lock", fail)
    with cache.reserved(object_key(module_that_adds(3), host()), 0.0):
        assert was_compiled(cache) and not was_compiled(cache)


def test_what_was_used_longest_ago_is_removed(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    for age, key in enumerate(("a", "b", "c")):
        cache.put(key, b"object")
        os.utime(cache._folder / f"{key}.o", (100 + age, 100 + age))
    monkeypatch.setattr(object_cache, "MAX_CACHE_BYTES", 3 * (cache._folder / "a.o").stat().st_size)
    assert cache.get("a") == b"object"
    cache.put("d", b"object")
    assert sorted(path.stem for path in cache._folder.glob("*.o")) == ["a", "c", "d"]


def test_what_a_killed_process_has_left_is_removed_and_what_is_being_written_is_not(cache: ObjectCache) -> None:
    cache.put("a", b"object")
    for name, age in (("left.tmp", 7200), ("fresh.tmp", 0), ("left.lock", 7200), ("fresh.lock", 0)):
        (cache._folder / name).write_bytes(b"part")
        os.utime(cache._folder / name, (time.time() - age, time.time() - age))
    cache.put("b", b"object")
    assert sorted(path.name for path in cache._folder.iterdir()) == ["a.o", "b.o", "fresh.lock", "fresh.tmp"]


def test_what_another_process_has_open_is_left_where_that_cannot_be_removed(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: PrivateFolder, name: str) -> None:
        raise PermissionError(13, "The process cannot access the file because it is being used by another process")

    cache.put("a", b"object")
    (cache._folder / "left.lock").touch()
    os.utime(cache._folder / "left.lock", (0, 0))
    monkeypatch.setattr(PrivateFolder, "remove", refuse)
    assert cache.put("b", b"object") == "" and cache.get("b") == b"object"


def test_objects_lie_in_the_users_own_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernels_folder() == tmp_path / "onward" / "kernels"
    assert load(module_that_adds(3)).was_compiled and not load(module_that_adds(3)).was_compiled
    assert ObjectCache(kernels_folder()).get(object_key(module_that_adds(3), host())) is not None


def test_modules_that_were_loaded_together_are_not_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, two = (module_that_adds(number, f"add_{number}") for number in (1, 2))
    places = [load(*modules).address("add_1") for modules in ((one, two), (two, one), (one,), (one,))]
    assert places[0] == places[1] != places[2] == places[3]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    assert load(one).was_compiled, "what one folder has is not kept in another"


def test_memory_that_cannot_be_executed_is_reported_in_one_sentence(
    cache: ObjectCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executable_memory, "_posix_problem", lambda: "Permission denied")
    monkeypatch.setattr(executable_memory, "_windows_problem", lambda: "Permission denied")
    with pytest.raises(NoExecutableMemory, match=r"cannot be made executable here \(Permission denied\)"):
        was_compiled(cache)
