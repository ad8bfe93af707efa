"""The keys that clients send: parsed from settings and the key file, kept as digests, found by what a client sent. The
file is read again when it changes, or on SIGHUP; one that cannot be used changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from onward import values
from onward.errors import SetupError
from onward.service.grant import Grant, StoredKey, digest_of
from onward.settings import Settings

log = logging.getLogger("onward.server")

DIGEST_PREFIX = "sha256:"
MAX_FILE_BYTES = 4_000_000
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""So that opening a pipe does not block, and Windows converts no line ends."""
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_RULE = "write `KEY`, `NAME = KEY` or `NAME = sha256:DIGEST`, with spaces around the ="
POLL_SECONDS = 1.0
Version = tuple[int, int, int] | None
"""Inode, time of change and size of a file; None where there is none. A replaced link or mount counts as a change."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key that clients may send. Only its digest is kept. `name` is "" for a key that has none. `expires_ms`: when it
    is refused, in Unix milliseconds."""

    digest: bytes = field(repr=False)
    name: str = ""
    grant: Grant | None = field(default=None, repr=False)
    """What a key of a database may do; None: one of a file or flag, without limits."""
    expires_ms: int | None = field(default=None, repr=False)

    @property
    def id(self) -> str:
        """Who sends this key, as one word: the name, else the beginning of the digest."""
        return self.name or f"key-{self.digest.hex()[:12]}"

    @property
    def public_id(self) -> str:
        """The key's id in the ledger, which reveals nothing of it: that of the database, or a part of its digest."""
        return f"key_{self.digest.hex()[:22]}" if self.grant is None else self.grant.id

    @property
    def limited(self) -> Grant | None:
        """The grant of a key that has limits per minute, day or month, else None."""
        return self.grant if self.grant is not None and self.grant.limits else None


class Keys:
    """A set of keys, found by digest. Immutable: a changed file makes another. `are_required`: whether clients must
    send one, by default if there are any."""

    def __init__(
        self, keys: Iterable[Key], *, are_required: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        self._by_digest = {key.digest: key for key in keys}
        self._by_public_id = {key.public_id: key for key in self._by_digest.values()}
        self.are_required = are_required or bool(self._by_digest)
        self._clock = clock

    def __len__(self) -> int:
        return len(self._by_digest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Keys):
            return False
        return self._by_digest == other._by_digest and self.are_required == other.are_required

    __hash__ = None  # type: ignore[assignment]

    @property
    def names(self) -> frozenset[str]:
        """The names that the operator chose."""
        return frozenset(key.name for key in self._by_digest.values() if key.name)

    def find(self, text: str) -> Key | None:
        """Return the key that a client sent as `text`.

        The time of a look-up depends on the digest of `text` only, from which a client learns nothing of a key.
        """
        key = self._by_digest.get(digest_of(text))
        if key is not None and key.expires_ms is not None and key.expires_ms <= self._clock() * 1000:
            return None
        return key

    def known_as(self, public_id: str) -> Key | None:
        """Return the key of this id in the ledger, None if it is not accepted any more."""
        return self._by_public_id.get(public_id)

    def with_stored(self, stored: Iterable[StoredKey]) -> Keys:
        """Return these keys and those of a database. One that was ever made there requires keys from then on, also
        when it is revoked. One with the name of a key of the file is left out: its usage could not be told apart."""
        stored = list(stored)
        for name in self._names_of_both(stored):
            log.error("the key %s of the database is not accepted: the key file has one of this name; rename it", name)
        keys = [
            Key(digest, each.name, each.grant, min(ends) if (ends := _times(each.grant.expires_ms, expires)) else None)
            for each in stored
            if each.name not in self.names
            for digest, expires in each.digests
        ]
        return Keys(
            [*keys, *self._by_digest.values()], are_required=bool(stored) or self.are_required, clock=self._clock
        )

    def check_names(self, stored: Iterable[StoredKey]) -> None:
        """Raise SetupError if a valid key of a database has the name of one of these."""
        for name in self._names_of_both(stored):
            raise SetupError(
                f"The key file and the database have a key of the same name, {name}: rename the one of the file, or "
                f"run `onward key revoke {name}`."
            )

    def _names_of_both(self, stored: Iterable[StoredKey]) -> list[str]:
        return [each.name for each in stored if each.digests and each.name in self.names]


def _times(*times: int | None) -> list[int]:
    return [each for each in times if each is not None]


def collect_keys(settings: Settings) -> Keys:
    """Return the keys of --api-key and --api-key-file. Raises SetupError for a file without valid keys."""
    keys = [Key(digest_of(key)) for key in settings.api_key]
    if settings.api_key_file is not None:
        keys += _read_file(settings.api_key_file)
    return Keys(keys)


def _read_file(path: Path) -> list[Key]:
    """Return the keys of a file. Raises SetupError with the number of the line, never with its text."""
    try:
        lines = _read_text(path).splitlines()
    except OSError as error:
        raise SetupError(f"The key file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SetupError(f"The key file {path} is not valid UTF-8.") from None
    keys: list[Key] = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                keys.append(parse_line(line))
            except ValueError as problem:
                raise SetupError(f"Line {number} of the key file {path} is not valid: {problem}.") from None
    if not keys:
        raise SetupError(f"The key file {path} contains no keys; write one per line.")
    _check_unique(keys, path)
    return keys


def _read_text(path: Path) -> str:
    """Raises OSError, SetupError and UnicodeDecodeError. A pipe with this name is refused, not waited for."""
    with os.fdopen(os.open(path, _READ_FLAGS), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise SetupError(f"The key file {path} is not a regular file.")
        if status.st_size > MAX_FILE_BYTES:
            raise SetupError(f"The key file {path} is larger than {MAX_FILE_BYTES // 1_000_000} MB.")
        if status.st_mode & (stat.S_IRGRP | stat.S_IROTH) and os.name == "posix":
            log.warning("the key file %s can be read by other users; run chmod 600 on it", path)
        return file.read(MAX_FILE_BYTES).decode("utf-8-sig")


def parse_line(line: str) -> Key:
    """Return the key of a line: `KEY`, `NAME = KEY`, or either with `sha256:DIGEST` for the key. Raises ValueError.

    White space at the = distinguishes a name from a key that contains the character.
    """
    name, separator, key = (part.strip() for part in line.partition("="))
    if not (separator and re.search(r"\s=|=\s", line.strip())):
        name, key = "", line.strip()
        if "=" in key.rstrip("="):
            raise ValueError(f"it is either a name or a key with an = in it: {_RULE}")
    else:
        try:
            name = values.key_name(name)
        except ValueError as problem:
            raise ValueError(f"a name {problem}: {_RULE}") from None
    if not key.startswith(DIGEST_PREFIX):
        return Key(digest_of(_checked(key)), name)
    if not _DIGEST.fullmatch(key.removeprefix(DIGEST_PREFIX)):
        raise ValueError(f"after {DIGEST_PREFIX} come the 64 hexadecimal digits of the key's digest")
    return Key(bytes.fromhex(key.removeprefix(DIGEST_PREFIX)), name)


def _checked(key: str) -> str:
    try:
        return values.api_key(key)
    except ValueError as problem:
        raise ValueError(f"a key {problem}") from None


def _check_unique(keys: list[Key], path: Path) -> None:
    """Raise SetupError for a key or a name that occurs twice: it would be ambiguous whose usage a request is."""
    if len({key.digest for key in keys}) < len(keys):
        raise SetupError(f"The key file {path} contains a key twice; write it once.")
    named = [key.name for key in keys if key.name]
    for name in named:
        if named.count(name) > 1:
            raise SetupError(f"The key file {path} contains the name {name} twice; use each name for one key.")


class KeyReload:
    """Passes new keys to `replace`; `keys` are the present ones, read after the file had `version`.

    Belongs to one event loop. Files are read on a thread of its own, since disks may hang, and nothing that a client
    sends may delay the refusal of a key.
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


def file_version(path: Path | None) -> Version:
    if path is None:
        return None
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
