"""Memory that only loading needed is dropped, and nothing else; threads share one heap."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import run
from typing import Protocol

import pytest

import onward
from onward import residency
from onward.compose import backend, engine
from onward.residency import Mapping, collect_later, drop_file_pages, freeze_objects, mappings
from onward.settings import Settings
from onward.values import ContentFilterSetting

from . import threads

if sys.platform == "win32":
    pytest.skip("needs a C library of POSIX", allow_module_level=True)


class Closable(Protocol):
    def close(self) -> None: ...


SMAPS = """\
7f0000000000-7f0000002000 r--s 00000000 08:01 12 /models/a b/openvino_model.bin
Size:                  8 kB
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd sh mr
7f0000002000-7f0000003000 r--p 00000000 08:01 13 /lib/libllvmlite.so
Rss:                   4 kB
Anonymous:             4 kB
7f0000003000-7f0000004000 rw-p 00000000 08:01 13 /lib/libllvmlite.so
Rss:                   4 kB
Anonymous:             0 kB
7f0000004000-7f0000005000 rw-p 00000000 00:00 0
Rss:                   4 kB
7f0000005000-7f0000006000 rw-p 00000000 00:00 0 [heap]
Rss:                   4 kB
"""


def test_only_pages_equal_to_their_file_are_clean() -> None:
    assert list(mappings(SMAPS)) == [
        Mapping(0x7F0000000000, 8192, "/models/a b/openvino_model.bin", 8192, is_dirty=False),
        Mapping(0x7F0000002000, 4096, "/lib/libllvmlite.so", 4096, is_dirty=True),
        Mapping(0x7F0000003000, 4096, "/lib/libllvmlite.so", 4096, is_dirty=True),
    ]
    assert [mapping.resident_bytes for mapping in mappings(SMAPS, ("openvino_", "nothing"))] == [8192]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
def test_pages_of_a_mapped_file_are_dropped_and_read_the_same_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    content = bytes(range(256)) * 4096
    path.write_bytes(content)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == content
        assert drop_file_pages("weights.bin") == len(content)
        assert drop_file_pages("weights.bin") == 0, "nothing is resident any more"
        assert mapped[:] == content


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
def test_a_modified_private_copy_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"a" * 8192)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[0] = ord("b")
        assert drop_file_pages("weights.bin") == 0
        assert mapped[:2] == b"ba"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_paused_while_addresses_are_in_use(
    monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    """A collection could unmap a file on any thread, and memory that took its place would be zeroed."""
    gc_states: list[bool] = []

    def no_mappings(*_: object) -> Iterator[Mapping]:
        gc_states.append(gc.isenabled())
        return iter(())

    monkeypatch.setattr(residency, "mappings", no_mappings)
    try:
        if not enabled:
            gc.disable()
        drop_file_pages("weights.bin")
        assert (gc_states, gc.isenabled()) == ([False], enabled)
    finally:
        gc.enable()


def drops(monkeypatch: pytest.MonkeyPatch, start: Callable[[], Closable]) -> list[bool]:
    """Return, per call of `drop_file_pages` in `start`, whether it ran on the main thread and before any engine's."""
    calls: list[bool] = []
    before = threads.running()

    def called(*names: str) -> int:
        alone = not any(thread.name == "onward-toy" for thread in threads.running() - before)
        calls.append(alone and threading.current_thread() is threading.main_thread())
        return 0

    monkeypatch.setattr(engine, "drop_file_pages", called)
    start().close()
    for thread in threads.running():  # pages must not be dropped later either
        if thread.name.startswith("onward-") and thread not in before:
            thread.join(30)
            assert not thread.is_alive()
    return calls


def test_in_another_program_no_pages_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drops(monkeypatch, lambda: onward.Onward("toy")) == []


def test_a_process_of_our_own_drops_pages_before_its_engines_start(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Settings(model=("toy",), engine_process="off")
    assert drops(monkeypatch, lambda: backend.compose(toy, own_process=True)) == [True]


def test_with_an_operators_code_loaded_no_pages_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have threads that unmap files."""
    monkeypatch.setattr(backend, "make_filters", lambda settings: None)
    rule = ContentFilterSetting("names", entry_point="found-by-code")
    toy = Settings(model=("toy",), content_filter=(rule,), engine_process="off")
    assert drops(monkeypatch, lambda: backend.compose(toy, own_process=True)) == []


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")
@pytest.mark.parametrize("own_process", [True, False])
def test_a_process_of_our_own_keeps_little_of_the_compiler(own_process: bool) -> None:
    script = f"""
from pathlib import Path
from onward.compose import compose
from onward.residency import mappings
from onward.settings import Settings

backend = compose(Settings(model=("toy",), engine_process="off"), own_process={own_process})
compiler = [each for each in mappings(Path("/proc/self/smaps").read_text()) if "libllvmlite" in each.path]
print(sum(each.resident_bytes for each in compiler if not each.is_dirty))
backend.close()
"""
    resident = int(run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    assert resident < 5 * 2**20 if own_process else resident > 20 * 2**20, resident


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc only")
def test_trim_heap_returns_freed_memory_to_the_system() -> None:
    """The last block stays allocated, so that the heap cannot shrink by itself."""
    script = """
import ctypes
from pathlib import Path
from onward.residency import trim_heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(65536) for _ in range(2000)]
for block in blocks:
    ctypes.memset(block, 1, 65536)
for block in blocks[:-1]:
    libc.free(ctypes.c_void_p(block))
before = resident()
trim_heap()
print(before - resident())
"""
    freed = int(run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    assert freed * mmap.PAGESIZE > 100 * 2**20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="glibc only")
@pytest.mark.parametrize(("first", "heaps"), [("share_heap()", 1), ("pass", 5)])
def test_threads_allocate_from_one_heap_after_share_heap(first: str, heaps: int, tmp_path: Path) -> None:
    script = f"""
import ctypes, threading
from onward.residency import share_heap

libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
{first}
together = threading.Barrier(4)

def work():
    together.wait()
    libc.malloc(1000)
    together.wait()

threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
file = ctypes.c_void_p(libc.fopen({str(tmp_path / "info").encode()!r}, b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""
    variables = {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"}
    run([sys.executable, "-c", script], check=True, env={k: v for k, v in os.environ.items() if k not in variables})
    assert (tmp_path / "info").read_text(encoding="utf-8").count("<heap nr=") == heaps


def test_the_collector_pauses_until_what_is_kept_is_there() -> None:
    before = gc.get_freeze_count()
    collect_later()
    try:
        assert not gc.isenabled()
        freeze_objects()
        assert gc.isenabled() and gc.get_freeze_count() > before
    finally:
        gc.enable()  # what is frozen stays so: that of all tests, which else would be traversed again and again
