"""Whether this system lets a process execute what it has written, which is asked before LLVM is: LLVM would crash."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

from onward.errors import SetupError


class NoExecutableMemory(SetupError):
    """The system does not let this process execute code that it has compiled."""


def require_executable_memory() -> None:
    """Raise NoExecutableMemory if memory that was written cannot be made executable."""
    problem = _windows_problem() if sys.platform == "win32" else _posix_problem()
    if problem:
        raise NoExecutableMemory(
            f"memory cannot be made executable here ({problem}), so kernels cannot run; allow it to this process: on "
            "SELinux with the boolean deny_execmem off, under systemd without MemoryDenyWriteExecute=yes"
        )


def _posix_problem() -> str:
    """Return why memory cannot be made executable; empty if it can.

    As LLVM does it: private pages are written, and then made readable and executable; never writable and executable.
    """
    try:
        with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON) as page:
            page[0] = 1
            buffer = (ctypes.c_char * mmap.PAGESIZE).from_buffer(page)
            try:
                mprotect = ctypes.CDLL(None, use_errno=True).mprotect
                mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
                if mprotect(ctypes.addressof(buffer), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
                    return os.strerror(ctypes.get_errno())
                mprotect(ctypes.addressof(buffer), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
            finally:
                del buffer
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _windows_problem() -> str:
    kernel = getattr(ctypes, "windll").kernel32  # noqa: B009  (absent from other systems' type stubs)
    kernel.VirtualAlloc.restype = ctypes.c_void_p
    kernel.VirtualAlloc.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint32)
    kernel.VirtualFree.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32)
    page = kernel.VirtualAlloc(None, 4096, 0x3000, 0x20)  # reserved and committed, executable and readable
    if not page:
        return f"Windows error {kernel.GetLastError()}"
    kernel.VirtualFree(page, 0, 0x8000)
    return ""
