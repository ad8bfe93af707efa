"""Reads the key file again when it changes, or on SIGHUP; a file that cannot be used changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onward.errors import SetupError
from onward.server.keys import Keys, collect_keys
from onward.settings import Settings

log = logging.getLogger("onward.server")

POLL_SECONDS = 1.0

Version = tuple[int, int, int] | None
"""Inode, time of change and size of a file; None where there is none. A replaced link or mount counts as a change."""


class KeyReload:
    """Passes new keys to `replace`; `keys` are the present ones, read after the file had `version`.

    Belongs to one event loop. Files are read on a thread of its own, since disks may hang, and nothing that a client
    sends may delay that a key is refused.
    """

    def __init__(self, settings: Settings, keys: Keys, version: Version, replace: Callable[[Keys], None]) -> None:
        self._settings = settings
        self._path = settings.api_key_file
        self._replace = replace
        self._keys = keys
        self._version = version
        self._is_due = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="onward-keys")

    def request(self) -> None:
        """Read the file soon, changed or not."""
        self._is_due.set()

    async def run(self) -> None:
        """Watch the file, if there is one, until the task is cancelled."""
        if self._path is None:
            await asyncio.Event().wait()
            return
        while True:
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._is_due.wait()
            except TimeoutError:
                pass
            try:
                await self._check(self._path)
            except Exception:  # such as no thread to read with: the keys stay, and so does the server
                log.exception("the key file could not be checked")

    async def _check(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        version = await loop.run_in_executor(self._thread, file_version, path)
        was_requested = self._is_due.is_set()
        if version == self._version and not was_requested:
            return
        self._is_due.clear()
        self._version = version
        try:
            keys = await loop.run_in_executor(self._thread, collect_keys, self._settings)
        except SetupError as problem:
            log.error("the keys stay as they were: %s", problem)
            return
        if was_requested or keys != self._keys:
            log.info("the keys were read again: %d accepted", len(keys))
        self._keys = keys
        self._replace(keys)


def reload_on_hangup(settings: Settings) -> bool:
    """Return whether SIGHUP should read the key file: there is one, and no terminal whose closing SIGHUP reports."""
    if settings.api_key_file is None or sys.platform == "win32":
        return False
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return True
    return False


def file_version(path: Path | None) -> Version:
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
