"""The thread that writes blocks: its queue is bounded, and a block that it cannot write leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from onward.engine import block_writer
from onward.engine.block_files import BlockFiles, forget
from onward.engine.block_writer import MAX_QUEUED_BYTES, BlockWriter
from tests.waiting import wait_for

BLOCK = np.zeros(1000, np.uint8)


@pytest.fixture
def files(tmp_path: Path) -> BlockFiles:
    return BlockFiles(tmp_path / "cache", 1 << 20, BLOCK.nbytes)


@pytest.fixture
def writer(files: BlockFiles) -> Iterator[BlockWriter]:
    made = BlockWriter(files)
    yield made
    assert made.end(60)


def key_of(number: int) -> bytes:
    return bytes([number]) * 40


def put(writer: BlockWriter, number: int) -> bool:
    return writer.put_block(key_of(number), BLOCK, None, 10**18)


@contextmanager
def held(writer: BlockWriter) -> Iterator[None]:
    """The thread hangs at the last queued item, as on a disk that does not respond."""
    go_on = threading.Event()
    assert writer.put(partial(wait_for, go_on.is_set))
    try:
        yield
    finally:
        go_on.set()


def finish(writer: BlockWriter) -> None:
    done = threading.Event()
    assert writer.put(done.set)
    wait_for(done.is_set)


def test_what_waits_is_bounded(writer: BlockWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_writer, "MAX_QUEUED", 10)
    with held(writer):
        done = [writer.put(lambda: None) for _ in range(50)]
        assert done[:9] == [True] * 9 and not done[-1] and writer._queue.qsize() <= 10
        assert not put(writer, 1) and not writer.has_room(1) and not writer.wait_for_room(1, 0.0)
    assert writer.wait_for_room(MAX_QUEUED_BYTES, 60)


def test_blocks_that_wait_are_bounded_in_bytes(writer: BlockWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_writer, "MAX_QUEUED_BYTES", 2500)
    with held(writer):
        assert writer.has_room(10_000), "one that is larger is written alone"
        assert put(writer, 1) and writer.has_room(1000) and put(writer, 2) and not writer.has_room(1000)
    assert writer.wait_for_room(1000, 60)
    finish(writer)
    assert writer.num_written_bytes > 2000


def test_blocks_that_are_not_written_take_no_room(
    files: BlockFiles, writer: BlockWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When no thread can be started, and when a write raises an unexpected error."""

    def fail(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    for what, name in ((threading.Thread, "start"), (BlockFiles, "write")):
        with monkeypatch.context() as patched:
            patched.setattr(what, name, fail)
            assert put(writer, 1) is (name == "write")
            assert writer.wait_for_room(MAX_QUEUED_BYTES, 60)
    assert put(writer, 1)
    finish(writer)
    assert files.size_of(key_of(1)) > 0


def test_blocks_queued_before_others_discarded_do_not_drop_later_ones(files: BlockFiles, writer: BlockWriter) -> None:
    """They were queued before; blocks computed since then are not dropped again because of them."""
    with held(writer):
        for number in (1, 2, 3):
            assert put(writer, number)
        forget(files.folder)
        writer.look_around()
    finish(writer)
    assert writer.new_word and not writer.may_write
    writer.accept_word()
    with held(writer):
        files.word, word = b"another", files.word
        assert put(writer, 4)
        files.word = word
        assert put(writer, 5)
    finish(writer)
    assert not writer.new_word and writer.may_write
    assert [bool(files.size_of(key_of(number))) for number in range(1, 6)] == [False] * 4 + [True]
