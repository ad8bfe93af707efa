"""Memory that loading leaves behind is handed back, and nothing else is; threads share one heap."""

import ctypes
import gc
import mmap
import os
import sys
import threading
from pathlib import Path
from subprocess import run

import pytest

import onward
from onward import compose, residency
from onward.residency import Mapping, drop_file_pages, mappings
from onward.settings import Settings
from onward.values import ContentFilterSetting

LISTING = """\
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


def test_only_what_equals_its_file_can_be_handed_back() -> None:
    assert list(mappings(LISTING)) == [
        Mapping(0x7F0000000000, 8192, "/models/a b/openvino_model.bin", 8192, kept=False),
        Mapping(0x7F0000002000, 4096, "/lib/libllvmlite.so", 4096, kept=True),
        Mapping(0x7F0000003000, 4096, "/lib/libllvmlite.so", 4096, kept=True),
    ]
    assert [mapping.resident for mapping in mappings(LISTING, ("openvino_", "nothing"))] == [8192]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells whose pages are whose")
def test_a_mapped_file_is_handed_back_and_reads_the_same_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    content = bytes(range(256)) * 4096
    path.write_bytes(content)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:] == content
        assert drop_file_pages("weights.bin") == len(content)
        assert drop_file_pages("weights.bin") == 0, "nothing is resident any more"
        assert mapped[:] == content


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells whose pages are whose")
def test_a_copy_that_was_changed_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"a" * 8192)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        mapped[0] = ord("b")
        assert drop_file_pages("weights.bin") == 0
        assert mapped[:2] == b"ba"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells whose pages are whose")
@pytest.mark.parametrize("collects", [True, False])
def test_nothing_is_collected_while_pages_are_known_by_their_addresses(monkeypatch, collects: bool) -> None:
    """A collection could unmap a file on any thread, and memory that took its place would be lost."""
    collected: list[bool] = []
    monkeypatch.setattr(residency, "mappings", lambda *_: collected.append(gc.isenabled()) or [])
    try:
        if not collects:
            gc.disable()
        drop_file_pages("weights.bin")
        assert (collected, gc.isenabled()) == ([False], collects)
    finally:
        gc.enable()


def handings_back(monkeypatch, start) -> list[bool]:
    """Calls of `drop_file_pages` in `start`: whether each came on the caller's own thread, and before any engine's."""
    calls: list[bool] = []
    before = set(threading.enumerate())

    def called(*names: str) -> int:
        alone = not any(thread.name == "onward-toy" for thread in threading.enumerate())
        calls.append(alone and threading.current_thread() is threading.main_thread())
        return 0

    monkeypatch.setattr(compose, "drop_file_pages", called)
    start().close()
    for thread in threading.enumerate():  # pages must not be handed back any later either
        if thread.name.startswith("onward-") and thread not in before:
            thread.join(30)
            assert not thread.is_alive()
    return calls


def test_in_another_program_no_pages_of_files_are_touched(monkeypatch) -> None:
    assert handings_back(monkeypatch, lambda: onward.Onward("toy")) == []


def test_a_process_of_our_own_hands_back_before_its_engines_start(monkeypatch) -> None:
    toy = Settings(model=("toy",))
    assert handings_back(monkeypatch, lambda: compose.compose(toy, own_process=True)) == [True]


def test_where_an_operator_brought_code_no_pages_of_files_are_touched(monkeypatch) -> None:
    """It may have threads, and they may unmap what they like."""
    monkeypatch.setattr(compose, "_filters", lambda settings: None)
    rule = ContentFilterSetting("names", entry_point="found-by-code")
    toy = Settings(model=("toy",), content_filter=(rule,))
    assert handings_back(monkeypatch, lambda: compose.compose(toy, own_process=True)) == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells whose pages are whose")
@pytest.mark.parametrize("own_process", [True, False])
def test_of_the_compiler_a_process_of_our_own_keeps_little(own_process: bool) -> None:
    script = f"""
from pathlib import Path
from onward.compose import compose
from onward.residency import mappings
from onward.settings import Settings

backend = compose(Settings(model=("toy",)), own_process={own_process})
compiler = [each for each in mappings(Path("/proc/self/smaps").read_text()) if "libllvmlite" in each.path]
print(sum(each.resident for each in compiler if not each.kept))
backend.close()
"""
    resident = int(run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    assert resident < 5 * 2**20 if own_process else resident > 20 * 2**20, resident


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc has the call")
def test_freed_memory_that_the_allocator_kept_is_given_back() -> None:
    """The last block is kept, so that the heap cannot shrink by itself."""
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


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="only glibc has the call")
@pytest.mark.parametrize(("first", "heaps"), [("share_heap()", 1), ("pass", 5)])
def test_threads_allocate_from_one_heap_once_it_is_shared(first: str, heaps: int, tmp_path: Path) -> None:
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
    told = {"MALLOC_ARENA_MAX", "GLIBC_TUNABLES"}
    run([sys.executable, "-c", script], check=True, env={k: v for k, v in os.environ.items() if k not in told})
    assert (tmp_path / "info").read_text().count("<heap nr=") == heaps
