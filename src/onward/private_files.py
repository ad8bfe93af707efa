"""Files that only the user may read and write, in a folder of that kind, reached without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp"
"""How the names of files end that are not whole yet."""
ABANDONED_SECONDS = 3600
"""How old a file that is not whole is when the process that wrote it must have been killed."""
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""How files are opened: no link is followed, and a pipe in a file's place is not waited for."""


@dataclass(frozen=True, slots=True)
class PrivateFolder:
    """A folder while it is open. `descriptor` is None on systems without descriptors of folders (Windows), where the
    user's profile is closed to others. Names are those of files in it. Methods raise OSError."""

    path: Path
    descriptor: int | None

    def open(self, name: str, flags: int) -> int:
        """Open a file, which is created for the user alone if `flags` say so. Returns a descriptor, the caller's."""
        return os.open(self._at(name), flags | _PLAIN, 0o600, dir_fd=self.descriptor)

    def reader(self, name: str, max_bytes: int) -> FileIO:
        """Open a file to read. Raises PermissionError for what is not a file of the user's own, or larger."""
        descriptor = self.open(name, os.O_RDONLY)
        found = os.fstat(descriptor)
        is_own = self.descriptor is None or (found.st_uid == os.geteuid() and not found.st_mode & 0o022)
        if not (is_own and stat.S_ISREG(found.st_mode) and found.st_size <= max_bytes):
            os.close(descriptor)
            raise PermissionError(f"{name} is not a file of the user's own")
        return FileIO(descriptor)

    @contextmanager
    def replacing(self, name: str, temporary: str) -> Iterator[BinaryIO]:
        """Yield a file to write, named `temporary` until it is whole: with an error nothing is left of it."""
        descriptor = self.open(temporary + TEMPORARY, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            source, target = self._at(temporary + TEMPORARY), self._at(name)
            os.replace(source, target, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            self.remove(temporary + TEMPORARY)
            raise

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            os.unlink(self._at(name), dir_fd=self.descriptor)

    def set_time(self, name: str, ns: int) -> None:
        """Set when a file was used last, in nanoseconds since the epoch. A link is not followed."""
        if self.descriptor is None:
            os.utime(self._at(name), ns=(ns, ns))
        else:
            os.utime(self._at(name), ns=(ns, ns), dir_fd=self.descriptor, follow_symlinks=False)

    def changed_ns(self) -> int:
        """Return when a file was added or removed last, in nanoseconds since the epoch."""
        status = self.path.stat() if self.descriptor is None else os.fstat(self.descriptor)
        return status.st_mtime_ns

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield name and status of everything in the folder, in no order. Links are not followed."""
        with os.scandir(self.path if self.descriptor is None else self.descriptor) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # another process has removed it
                    yield entry.name, entry.stat(follow_symlinks=False)

    def _at(self, name: str) -> str:
        return name if self.descriptor is not None else str(self.path / name)


@contextmanager
def private_folder(path: Path, *, closes: bool = False) -> Iterator[PrivateFolder]:
    """Open a folder, which is created for the user alone where there is none.

    Raises PermissionError if it is a link, if others own it or may write to it, or if they may read it; with `closes`
    they may not any more, instead. Raises OSError where it cannot be made or opened.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "nt":
        yield PrivateFolder(path, None)
        return
    if path.is_symlink():
        raise PermissionError("it is a link")
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise PermissionError("it belongs to another user")
        if found.st_mode & (0o022 if closes else 0o077):
            raise PermissionError("others may use it; run chmod 700 on it")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o700)
        yield PrivateFolder(path, descriptor)
    finally:
        os.close(descriptor)
