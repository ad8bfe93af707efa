"""Locks on open files, which processes hold until they close them or end."""

from __future__ import annotations

import errno
import math
import os
import sys
import time

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_UNSUPPORTED = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP})
_POLL_SECONDS = 0.05


class NoLocks(OSError):
    """The file system has no locks: Lustre without `-o flock`, some of NFS."""


def try_lock(file: int, *, shared: bool = False) -> bool:
    """Lock an open file, with `shared` together with others that share it; return False where somebody else holds it.

    On Windows no lock is shared. Raises NoLocks, and other OSErrors.
    """
    try:
        if sys.platform == "win32":
            os.lseek(file, 2**31 - 2, os.SEEK_SET)  # beyond the file's end: locked bytes cannot be read
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno in _UNSUPPORTED:
            raise NoLocks(error.errno, error.strerror) from None
        raise
    return True


def wait_for_lock(file: int, seconds: float = math.inf) -> bool:
    """Lock an open file; return False where others still hold it after so many seconds. Raises as `try_lock`."""
    deadline = time.monotonic() + seconds
    while not try_lock(file):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True
