"""KV blocks in files of one folder, by key, shared by any number of processes; the least recently used are removed.

A block's key is a digest of the engine's fingerprint, the salt, and all tokens up to the block's end. A state after a
block is a file of the same form, with a key that follows from the block's. A file contains a digest of its key and its
content: one that was cut, altered or renamed is a miss. Prompts can be inferred from keys and values, so folder and
files are the user's alone.

The file `lock` contains a random word, which `forget` replaces when it removes all blocks. Whoever writes a block holds
the lock, and has to have seen that word when the block was computed: so what was forgotten is not written afterwards.
Where the file system has no locks, the word is read again after the block was written.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as ReadOnly
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onward.engine.prefix_tree import PackedScores
from onward.file_locks import NoLocks, try_lock, wait_for_lock
from onward.private_files import ABANDONED_SECONDS, TEMPORARY, PrivateFolder, private_folder

SUFFIX = ".kv"
LOCK = "lock"
MIN_FREE_BYTES = 1_000_000_000
"""Bytes that a cache leaves free on a disk, which others may need."""
FULL_FRACTION = 7 / 8
"""The fraction of the maximum that is left after a removal, so that not every write causes another one."""
SCAN_FRACTION = 1 / 16
"""The fraction of the maximum that is written before the sizes of all files are counted again."""
MAX_SCORES_BYTES = 1 << 26
FORGET_SECONDS = 10.0
"""How long `forget` waits for processes that are writing."""
RANK_NS = 1000
"""By how much a block counts as older than the one before it in a list of uses, in nanoseconds."""
_MAGIC = b"onward kv block 1\n"
_DIGEST_BYTES, _FAMILY_BYTES = 32, 8
_HEADER = struct.Struct("<QIII")
"""Bytes of keys and values, or of a state; scored tokens, alternatives per token, whether there are ranks."""

Parts = ReadOnly[NDArray[np.uint8]]
"""The memory of a block (`model.ModelRunner.block_memory`)."""


class Forgotten(Exception):
    """The blocks of a folder were forgotten. `word` is that of the folder now."""

    def __init__(self, word: bytes) -> None:
        super().__init__("the blocks of this folder were forgotten")
        self.word = word


class Unusable(Exception):
    """What lies in the place of a block's file is not that block."""


class Missing(Unusable):
    """There is no file of a block."""


def root_key(identity: str, salt: str) -> bytes:
    """Return what the key of a prompt's first block is derived from. `identity`: what else the bits of blocks depend
    on."""
    return hashlib.blake2b(f"{identity}\0{salt}".encode(), digest_size=_DIGEST_BYTES).digest()


def next_key(key: bytes, tokens: ReadOnly[int]) -> bytes:
    """Return the key of the block with `tokens`, after that of the block before it. It begins with the family."""
    digest = hashlib.blake2b(key + np.array(tokens, "<i4").tobytes(), digest_size=_DIGEST_BYTES).digest()
    return (family_of(key) or digest[:_FAMILY_BYTES]) + digest


def state_key(key: bytes) -> bytes:
    """Return the key of the state after a block, of the same family."""
    return family_of(key) + hashlib.blake2b(key, digest_size=_DIGEST_BYTES, person=b"state").digest()


def family_of(key: bytes) -> bytes:
    """Return what the keys of a prompt's first block and of all blocks that continue it have in common."""
    return key[:-_DIGEST_BYTES]


def file_bytes(block_bytes: int, scores: PackedScores | None) -> int:
    """Return the size of a block's file. Of two files of a block, the larger has more scores."""
    return len(_MAGIC) + _DIGEST_BYTES + _HEADER.size + block_bytes + sum(each.nbytes for each in _arrays(scores))


def forget(folder: Path) -> int:
    """Remove all files, and keep running servers from writing those they have. Returns how many there were. Raises
    OSError, also where others write for more than FORGET_SECONDS. A folder that does not exist is left so."""
    if not folder.is_symlink() and not folder.exists():
        return 0
    with private_folder(folder) as opened, _locked(opened, exclusive=True) as (descriptor, _):
        _write_word(descriptor)  # before: what is left of an interrupted removal is removed by the next one
        names = [name for name, _ in opened.files() if name.endswith((SUFFIX, TEMPORARY))]
        for name in names:
            opened.remove(name)
        return sum(name.endswith(SUFFIX) for name in names)


def usage(folder: Path) -> tuple[int, int]:
    """Return how many files of blocks and states a folder has, and their bytes. Raises OSError. Makes the folder."""
    with private_folder(folder) as opened:
        sizes = [status.st_size for name, status in opened.files() if name.endswith(SUFFIX)]
    return len(sizes), sum(sizes)


class BlockFiles:
    """The files of blocks of `block_bytes` each, and of states, as far as they are known: those of other processes are
    found by `refresh`.

    `size_of`, `read`, `disregard`, `drop` and `discard` may be used on any thread; all others on one thread at a time.
    """

    def __init__(self, folder: Path, max_bytes: int, block_bytes: int) -> None:
        """Look at what is there. Raises OSError if the folder cannot be used at all."""
        self.folder = folder
        self.max_bytes = max_bytes
        self.block_bytes = block_bytes
        self._sizes: dict[bytes, int] = {}
        self._changing = threading.Lock()
        """Held while `_sizes` or `discarded` is replaced or changed."""
        self.discarded: dict[bytes, int] = {}
        """Families whose files have not been removed yet, and when each was discarded last, as a running number.
        Replaced, never modified."""
        self._num_discards = 0
        self._all_bytes = self._written_bytes = 0
        """All files when they were counted last, and what was written since."""
        self._seen_ns = -1
        """When the folder was changed last by this process, or looked through."""
        self._has_news = False
        """Whether another process has changed it since it was looked through."""
        self.word = b""
        """That of the folder, as far as this process knows. What was computed with another one is not written."""
        with private_folder(folder) as opened:
            with suppress(OSError), _locked(opened) as (descriptor, _):  # on a read-only disk blocks can be read
                self.word = _read_word(descriptor)
            self._scan(opened)

    def size_of(self, key: bytes) -> int:
        """Return the size of a block's file, 0 if none is known, or if it was discarded."""
        return 0 if family_of(key) in self.discarded else self._sizes.get(key, 0)

    def read(self, key: bytes, parts: Parts) -> PackedScores | None:
        """Read a block into `parts`, and return its scores. What `parts` contain is only valid if this returns. Raises
        Unusable; OSError where it cannot be read now, which says nothing about the file."""
        expected = sum(part.nbytes for part in parts)
        with private_folder(self.folder) as opened, self._open(opened, key, expected) as file:
            found = os.fstat(file.fileno()).st_size
            magic, digest = file.read(len(_MAGIC)), file.read(_DIGEST_BYTES)
            header = file.read(_HEADER.size)
            if magic != _MAGIC or len(header) != _HEADER.size:
                raise Unusable("its beginning is not that of a block")
            num_bytes, *shape = _HEADER.unpack(header)
            scores = _empty_scores(*shape, limit=found)
            if num_bytes != expected or found != file_bytes(num_bytes, scores):
                raise Unusable("its size is not that of a block")
            arrays = [*parts, *_arrays(scores)]
            if any(file.readinto(array.data) != array.nbytes for array in arrays):
                raise Unusable("it is incomplete")
        if digest != _digest(key, header, arrays):
            raise Unusable("it was altered")
        return scores

    def _open(self, opened: PrivateFolder, key: bytes, num_bytes: int) -> FileIO:
        if family_of(key) in self.discarded:
            raise Missing("it was discarded")
        try:
            return opened.reader(_name(key), file_bytes(num_bytes, None) + MAX_SCORES_BYTES)
        except FileNotFoundError:
            raise Missing("there is none") from None
        except OSError as error:
            if error.errno in (None, errno.ELOOP):  # not the user's own file, or a link
                raise Unusable(error.strerror or str(error)) from None
            raise

    def write(self, key: bytes, parts: Parts, scores: PackedScores | None, ns: int, word: bytes) -> int:
        """Write a block that was used at time `ns`, in nanoseconds since the epoch, and return the size of its file; 0
        while others forget, and for one that was discarded, is too large, or was removed by another process at once.
        `word`: that of the folder when the block was computed, as this process knew it. Raises OSError, and
        Forgotten."""
        arrays, num_bytes = [*parts, *_arrays(scores)], sum(part.nbytes for part in parts)
        header = _HEADER.pack(num_bytes, *_shape(scores))
        size = file_bytes(num_bytes, scores)
        is_too_large = size > min(self.max_bytes * FULL_FRACTION, num_bytes + MAX_SCORES_BYTES)
        if is_too_large or family_of(key) in self.discarded:
            return 0
        with private_folder(self.folder) as opened:
            self._make_room(opened, size)
            try:
                with _locked(opened) as (descriptor, is_locked):
                    self._require_word(descriptor, word)
                    self._look_for_others(opened)
                    with opened.replacing(_name(key), f"{key.hex()[-16:]}{secrets.token_hex(4)}") as file:
                        file.writelines([_MAGIC, _digest(key, header, arrays), header])
                        file.writelines(array.data for array in arrays)
                    if not is_locked and _read_word(descriptor) != word:
                        opened.remove(_name(key))
                        self._require_word(descriptor, word)
            except BlockingIOError:
                return 0
            try:
                opened.set_time(_name(key), ns)
            except FileNotFoundError:  # another process has removed it, to make room or to forget
                return 0
            self._seen_ns = opened.changed_ns()
        with self._changing:
            self._written_bytes += size - self._sizes.get(key, 0)
            self._sizes[key] = size
        return size

    def touch(self, keys: ReadOnly[bytes], ns: int) -> None:
        """Note that the blocks of a path were used at time `ns`, those further from the beginning before the others."""
        with suppress(OSError), private_folder(self.folder) as opened:
            for index, key in enumerate(keys):
                with suppress(OSError):
                    opened.set_time(_name(key), ns - index * RANK_NS)

    def disregard(self, keys: ReadOnly[bytes]) -> None:
        """Treat blocks as if they had no files, until all files are counted again: they may be written anew."""
        with self._changing:
            for key in keys:
                self._sizes.pop(key, None)

    def drop(self, keys: ReadOnly[bytes]) -> None:
        """Remove the files of blocks."""
        self.disregard(keys)
        with suppress(OSError), private_folder(self.folder) as opened:
            for key in keys:
                opened.remove(_name(key))

    def discard(self, families: Iterable[bytes]) -> None:
        """Neither find, read nor write any block of these families until `remove_discarded` has removed their files."""
        with self._changing:
            self._num_discards += 1
            self.discarded = self.discarded | dict.fromkeys(families, self._num_discards)

    def remove_discarded(self, discarded: Mapping[bytes, int]) -> None:
        """Remove the files of families that were discarded (what `discarded` was). They may be written again then,
        except those that were discarded once more meanwhile. Raises OSError; then all stay discarded."""
        if not discarded:
            return
        with private_folder(self.folder) as opened:
            for name in [name for name, _ in opened.files() if family_of(_key(name)) in discarded]:
                opened.remove(name)
        with self._changing:
            self._sizes = {key: size for key, size in self._sizes.items() if family_of(key) not in discarded}
            self.discarded = dict(self.discarded.items() - discarded.items())

    def refresh(self, word: bytes) -> None:
        """Find the files of other processes, if there may be new ones. Raises Forgotten."""
        with suppress(OSError), private_folder(self.folder) as opened:
            with _locked(opened) as (descriptor, _):
                self._require_word(descriptor, word)
            self._look_for_others(opened)
            if self._has_news:
                self._scan(opened)

    def _require_word(self, lock: int, word: bytes) -> None:
        if (found := _read_word(lock)) != word:
            with self._changing:
                self._sizes = {}
            raise Forgotten(found)

    def _look_for_others(self, opened: PrivateFolder) -> None:
        """Note whether another process has changed the folder."""
        self._has_news = self._has_news or opened.changed_ns() != self._seen_ns

    def _make_room(self, opened: PrivateFolder, size: int) -> None:
        """Remove files for another one. Raises OSError if the disk is nearly full."""
        if opened.descriptor is not None:
            disk = os.fstatvfs(opened.descriptor)
            if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES + size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        is_due = self._written_bytes + size > self.max_bytes * SCAN_FRACTION
        if is_due or self._all_bytes + self._written_bytes + size > self.max_bytes:
            self._scan(opened, size)

    def _scan(self, opened: PrivateFolder, size: int = 0) -> None:
        """Find and count all files; remove the least recently used if there is no room for `size` more bytes, and what
        processes that were killed have left."""
        self._seen_ns, self._has_news = opened.changed_ns(), False
        found: list[tuple[int, str, int]] = []
        for name, status in opened.files():
            if name.endswith(SUFFIX):
                found.append((status.st_mtime_ns, name, status.st_size))
            elif name.endswith(TEMPORARY) and status.st_mtime < time.time() - ABANDONED_SECONDS:
                with suppress(OSError):
                    opened.remove(name)
        total = sum(num_bytes for _, _, num_bytes in found)
        if total + size > self.max_bytes * (1 - SCAN_FRACTION):
            found.sort(reverse=True)
            with suppress(OSError):  # on a read-only disk blocks can be read
                while found and total + size > self.max_bytes * FULL_FRACTION:
                    opened.remove(found[-1][1])
                    total -= found.pop()[2]
            self._seen_ns = opened.changed_ns()
        with self._changing:
            self._sizes = {key: num_bytes for _, name, num_bytes in found if (key := _key(name))}
        self._all_bytes, self._written_bytes = total, 0


def _name(key: bytes) -> str:
    return key.hex() + SUFFIX


def _key(name: str) -> bytes:
    """Return the key of a file's name; empty if it is none."""
    try:
        key = bytes.fromhex(name.removesuffix(SUFFIX))
    except ValueError:
        return b""
    return key if len(key) == _FAMILY_BYTES + _DIGEST_BYTES else b""


def _digest(key: bytes, header: bytes, arrays: Parts) -> bytes:
    digest = hashlib.sha256(key + header)
    for array in arrays:
        digest.update(array.data)
    return digest.digest()


def _arrays(scores: PackedScores | None) -> list[NDArray[np.uint8]]:
    """Return the memory of scores, in the order of the file."""
    if scores is None:
        return []
    arrays = (scores.tokens, scores.logprobs, scores.top_tokens, scores.top_logprobs, scores.ranks)
    return [array.reshape(-1).view(np.uint8) for array in arrays if array is not None]


def _shape(scores: PackedScores | None) -> tuple[int, int, int]:
    return (0, 0, 0) if scores is None else (len(scores), scores.top, int(scores.ranks is not None))


def _empty_scores(count: int, top: int, has_ranks: int, *, limit: int) -> PackedScores | None:
    """Return scores to be read. Raises Unusable for more than `limit` bytes of them."""
    if not count:
        return None
    if count * (8 + 8 * top + 4 * has_ranks) > limit:
        raise Unusable("its size is not that of a block")
    ranks = np.zeros(count, np.int32) if has_ranks else None
    wide = (count, top)
    return PackedScores(
        np.zeros(count, np.int32), np.zeros(count, np.float32), np.zeros(wide, np.int32), np.zeros(wide, np.float32),
        ranks,
    )  # fmt: skip


@contextmanager
def _locked(opened: PrivateFolder, *, exclusive: bool = False) -> Iterator[tuple[int, bool]]:
    """Hold the lock, together with others unless `exclusive`; yield a descriptor of its file, and whether the file
    system has locks. Raises BlockingIOError while somebody else has it, with `exclusive` after FORGET_SECONDS."""
    descriptor = opened.open(LOCK, os.O_RDWR | os.O_CREAT)
    try:
        is_locked = True
        try:
            if not (wait_for_lock(descriptor, FORGET_SECONDS) if exclusive else try_lock(descriptor, shared=True)):
                raise BlockingIOError(errno.EAGAIN, "another process is using it")
        except NoLocks:
            is_locked = False
        if not _read_word(descriptor):
            _write_word(descriptor)
        yield descriptor, is_locked
    finally:
        os.close(descriptor)


def _read_word(lock: int) -> bytes:
    os.lseek(lock, 0, os.SEEK_SET)
    return os.read(lock, 64)


def _write_word(lock: int) -> None:
    os.lseek(lock, 0, os.SEEK_SET)
    os.write(lock, secrets.token_hex(16).encode())
