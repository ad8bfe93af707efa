"""Keeps a thread's alternative signal stack as it was while OpenVINO is loaded on it.

On Linux, the CPU plug-in installs a stack of its own for signal handlers (sigaltstack(2)) on the thread that creates
it, and unmaps that stack when it is destroyed, on whichever thread that happens. On any other thread it cannot
uninstall it, so that the next signal with a Python handler would write to unmapped memory: SIGSEGV, long after a model
was closed.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Stack(ctypes.Structure):
    """`stack_t` of sigaltstack(2), as Linux lays it out."""

    _fields_ = (("base", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Restore the calling thread's alternative signal stack, or that there is none, at the end of the block.

    Does nothing on other systems than Linux.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    sigaltstack = ctypes.CDLL(None).sigaltstack
    before = _Stack()
    if sigaltstack(None, ctypes.byref(before)) != 0:
        yield
        return
    try:
        yield
    finally:
        sigaltstack(ctypes.byref(before), None)
