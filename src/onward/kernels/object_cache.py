"""Compiled objects on disk, in the user's own cache folder and nowhere else, because what lies there is executed.

The folder belongs to the user alone, and is used only if that is so. A file holds its key and a digest of everything
behind it: one that was altered, cut or renamed is not used, and its module is compiled again. A cache that cannot be
read or written is not an error: every process then compiles for itself.
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from onward.machine import room_wanted
from onward.settings.folders import cache_folder

MAX_CACHE_BYTES = 256 << 20
"""Those that were used longest ago are removed where there are more: of earlier versions, of settings that were tried
once. A model has one object per precision, of 20 to 400 KB; sampling and the self-test have one each."""
MAX_OBJECT_BYTES = 64 << 20
_ABANDONED_SECONDS = 3600
_MAGIC = b"onward object 1\n"
_DIGEST_BYTES = 32


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
            with self._opened_folder() as folder:
                data = _read(self._folder / f"{key}.o", f"{key}.o", folder)
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST_BYTES
        is_whole = data.startswith(_MAGIC) and data[len(_MAGIC) : start] == _digest(key, data[start:])
        if not is_whole:
            return None
        with suppress(OSError):
            os.utime(self._folder / f"{key}.o")
        return data[start:]

    def put(self, key: str, data: bytes) -> str:
        """Keep an object, if that can be done; return why it cannot in a sentence, else ""."""
        try:
            with self._opened_folder():
                handle, temporary = tempfile.mkstemp(".tmp", key[:16], self._folder)
                try:
                    with os.fdopen(handle, "wb") as file:
                        file.write(_MAGIC + _digest(key, data) + data)
                    Path(temporary).replace(self._folder / f"{key}.o")
                except OSError:
                    Path(temporary).unlink(missing_ok=True)
                    raise
                self._remove_unused()
        except OSError as error:
            reason = f"{error.strerror or error}{room_wanted(error, len(data))}"
            return f"Compiled kernels cannot be kept in {self._folder} ({reason}): every start compiles them again."
        return ""

    def _remove_unused(self) -> None:
        """Remove what is too much, and what processes that were killed have left."""
        for path in self._folder.glob("*.tmp"):
            if path.lstat().st_mtime < time.time() - _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)
        objects = [(path.lstat(), path) for path in self._folder.glob("*.o")]
        left = MAX_CACHE_BYTES
        for status, path in sorted(objects, key=lambda each: each[0].st_mtime, reverse=True):
            left -= status.st_size
            if left < 0:
                path.unlink(missing_ok=True)

    @contextmanager
    def _opened_folder(self) -> Iterator[int | None]:
        """Create the folder and yield a descriptor of it, None on systems without them. Raises PermissionError if it
        is a link, or others own it or may write to it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.name == "nt":
            yield None  # the user's profile is closed to others
            return
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
                raise PermissionError("the folder of compiled kernels is not the user's own")
            if stat.S_IMODE(found.st_mode) != 0o700:
                os.fchmod(descriptor, 0o700)
            yield descriptor
        finally:
            os.close(descriptor)


def _digest(key: str, data: bytes) -> bytes:
    return sha256(key.encode() + b"\n" + data).digest()


def _read(path: Path, name: str, folder: int | None) -> bytes:
    """Return a file's content. Raises OSError for a link, and what is not a file of the user's own."""
    if folder is None:
        return path.read_bytes()
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        is_own = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
        if not is_own or found.st_size > MAX_OBJECT_BYTES:
            raise PermissionError(f"{name} is not a file of the user's own")
        return file.read()
