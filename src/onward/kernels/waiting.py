"""How threads sleep until a number in memory changes: the system's call, as addresses that compiled code calls.

On Linux a futex, which costs nothing while nobody waits. Elsewhere a waiting thread sleeps for a moment and looks
again.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import dataclass

_FUTEX = {"x86_64": 202, "AMD64": 202, "aarch64": 98, "arm64": 98, "riscv64": 98}
"""The number of the system call."""
FUTEX_WAIT, FUTEX_WAKE = 128, 129
"""Of one process (FUTEX_PRIVATE_FLAG)."""
_NAP_MICROSECONDS, _NAP_MILLISECONDS = 50, 1


@dataclass(frozen=True)
class Waiting:
    """`wait(wait_number, address, FUTEX_WAIT, expected, null)` returns when the 32-bit number at an address may have
    changed from what was expected; `wake(wake_number, address, FUTEX_WAKE, count)` wakes threads that wait there.
    `wake` is 0 where none is needed. Addresses of functions."""

    wait: int
    wait_number: int
    wake: int = 0
    wake_number: int = 0


def waiting() -> Waiting:
    """Return this system's way to wait."""
    if sys.platform == "win32":
        return Waiting(_address(getattr(ctypes, "windll").kernel32.Sleep), _NAP_MILLISECONDS)  # noqa: B009
    library = ctypes.CDLL(None)
    number = _FUTEX.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        return Waiting(_address(library.usleep), _NAP_MICROSECONDS)
    call = _address(library.syscall)
    return Waiting(call, number, call, number)


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
