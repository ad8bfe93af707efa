"""Locks on files: who holds one, who waits, and file systems without."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from onward.file_locks import NoLocks, try_lock, wait_for_lock


@pytest.fixture
def files(tmp_path: Path) -> Iterator[list[int]]:
    """Three descriptors of one file, each opened on its own."""
    opened = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    yield opened
    for file in opened:
        os.close(file)


def test_one_holds_a_lock_until_it_closes_the_file(files: list[int], tmp_path: Path) -> None:
    holder = os.open(tmp_path / "lock", os.O_RDWR)
    assert try_lock(holder) and not try_lock(files[0])
    assert not try_lock(files[0], shared=True) and not wait_for_lock(files[0], 0.0)
    os.close(holder)
    assert wait_for_lock(files[0])


@pytest.mark.skipif(os.name == "nt", reason="no lock is shared there")
def test_shared_locks_keep_only_others_out(files: list[int]) -> None:
    assert try_lock(files[0], shared=True) and try_lock(files[1], shared=True)
    assert not try_lock(files[2])


def test_errors_of_file_systems_without_locks_are_distinguished_from_others(
    files: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")
    for number, kind in (
        (errno.ENOLCK, NoLocks),
        (errno.ENOSYS, NoLocks),
        (errno.EOPNOTSUPP, NoLocks),
        (errno.EIO, OSError),
    ):

        def flock(file: int, operation: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)
        with pytest.raises(OSError) as caught:
            try_lock(files[0])
        assert type(caught.value) is kind and caught.value.errno == number
