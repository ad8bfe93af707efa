"""Compiled objects on disk: in the user's own cache folder, and those that the package brings. Nowhere else, because
what lies there is executed.

The user's folder belongs to the user alone, and is used only if that is so. A file of either folder holds a digest of
its key and its object: one that was altered, cut or renamed is not used, and its module is compiled again. A cache
that cannot be read or written is not an error: every process then compiles for itself.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from onward.file_locks import wait_for_lock
from onward.folders import cache_folder
from onward.machine import room_wanted
from onward.private_files import ABANDONED_SECONDS, TEMPORARY, PrivateFolder, private_folder

MAX_CACHE_BYTES = 256 << 20
"""Those that were used longest ago are removed where there are more: of earlier versions, of settings that were tried
once. A model has some ten objects, of 2 to 100 KB, of which it shares most with models like it; sampling and the
self-test have one each."""
MAX_OBJECT_BYTES = 64 << 20
_MAGIC = b"onward object 1\n"
_DIGEST_BYTES = 32
SUFFIX = ".o"
_LOCK_SUFFIX = ".lock"


PACKAGED = Path(__file__).parent / "objects"
"""What a wheel contains (runtimes.native.packaged): no more and no less trusted than the code beside it, but LLVM ends
the process where half a file is left of an installation that was interrupted."""


def packaged_object(key: str) -> bytes | None:
    """Return an object that the package brings; None where it does not, as in a checkout."""
    with suppress(OSError):
        return _object_in((PACKAGED / (key + SUFFIX)).read_bytes(), key)
    return None


def file_of(key: str, data: bytes) -> bytes:
    """Return the content of the file that an object is kept in."""
    return _MAGIC + _digest(key, data) + data


def _object_in(content: bytes, key: str) -> bytes | None:
    start = len(_MAGIC) + _DIGEST_BYTES
    data = content[start:]
    return data if content[:start] == _MAGIC + _digest(key, data) else None


def kernels_folder() -> Path:
    """Return the folder of compiled kernels. No setting moves it; XDG_CACHE_HOME does."""
    return cache_folder() / "kernels"


class ObjectCache:
    """Objects by key, a hexadecimal digest. Any thread and any process may use it at any time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, key: str) -> bytes | None:
        """Return the object, None if there is none that can be trusted."""
        try:
            with private_folder(self._folder, closes=True) as folder:
                with folder.reader(key + SUFFIX, MAX_OBJECT_BYTES) as file:
                    data = _object_in(file.read(), key)
                if data is not None:
                    with suppress(OSError):
                        folder.set_time(key + SUFFIX, time.time_ns())
                return data
        except OSError:
            return None

    @contextmanager
    def reserved(self, key: str, seconds: float) -> Iterator[bool]:
        """Yield whether the caller may compile an object: False if another thread or process has reserved it, and still
        has after so many seconds. What a process had reserved is free when it ends. Where the folder cannot be used, or
        has no locks, everybody may compile."""
        descriptor, is_reserved = self._open_lock(key), True
        if descriptor is None:
            yield True
            return
        try:
            with suppress(OSError):
                is_reserved = wait_for_lock(descriptor, seconds)
            yield is_reserved
        finally:
            if is_reserved:
                with suppress(OSError), private_folder(self._folder, closes=True) as folder:
                    folder.remove(key + _LOCK_SUFFIX)  # who waits for it has it next, and finds the object
            os.close(descriptor)

    def _open_lock(self, key: str) -> int | None:
        with suppress(OSError), private_folder(self._folder, closes=True) as folder:
            return folder.open(key + _LOCK_SUFFIX, os.O_RDWR | os.O_CREAT)
        return None

    def put(self, key: str, data: bytes) -> str:
        """Keep an object, if that can be done; return why it cannot in a sentence, else ""."""
        try:
            with private_folder(self._folder, closes=True) as folder:
                with folder.replacing(key + SUFFIX, f"{key[:16]}{secrets.token_hex(4)}") as file:
                    file.write(file_of(key, data))
                _remove_unused(folder)
        except OSError as error:
            reason = f"{error.strerror or error}{room_wanted(error, len(data))}"
            return f"Compiled kernels cannot be kept in {self._folder} ({reason}): every start compiles them again."
        return ""


def _remove_unused(folder: PrivateFolder) -> None:
    """Remove what is too much, and what processes that were killed have left."""
    found = sorted(folder.files(), key=lambda each: each[1].st_mtime_ns, reverse=True)
    left = MAX_CACHE_BYTES
    for name, status in found:
        if name.endswith(SUFFIX):
            left -= status.st_size
            is_unused = left < 0
        else:
            is_old = status.st_mtime < time.time() - ABANDONED_SECONDS
            is_unused = name.endswith((TEMPORARY, _LOCK_SUFFIX)) and is_old
        if is_unused:
            with suppress(PermissionError):  # on Windows, while another process has it open
                folder.remove(name)


def _digest(key: str, data: bytes) -> bytes:
    return sha256(key.encode() + b"\n" + data).digest()
