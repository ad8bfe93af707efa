"""Frames: everything arrives whole and in order, however it is split; anything else than a frame is an error."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.ipc import frames
from onward.ipc.frames import BrokenFrame, FrameReader, FrameWriter, frame, write_frame

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@given(payloads=st.lists(st.binary(max_size=2000), max_size=8), cuts=st.lists(st.integers(1, 500), min_size=1))
def test_frames_arrive_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(frame, payloads))
    ours, theirs = socket.socketpair()

    def write() -> None:
        with theirs:
            start, turn = 0, 0
            while start < len(data):
                end = start + cuts[turn % len(cuts)]
                theirs.sendall(data[start:end])
                start, turn = end, turn + 1

    writer = threading.Thread(target=write)
    writer.start()
    with ours:
        assert list(FrameReader(ours.fileno())) == payloads
    writer.join()


def test_a_length_over_the_limit_is_an_error(pair: Pair) -> None:
    pair[0].sendall(b"\xff\xff\xff\xff")
    with pytest.raises(BrokenFrame, match="claims 4294967295 bytes"):
        list(FrameReader(pair[1].fileno()))


def test_an_end_inside_a_frame_is_an_error(pair: Pair) -> None:
    write_frame(pair[0].fileno(), b"whole")
    pair[0].sendall(frame(b"cut off")[:-1])
    pair[0].shutdown(socket.SHUT_WR)
    received = iter(FrameReader(pair[1].fileno()))
    assert next(received) == b"whole"
    with pytest.raises(BrokenFrame, match="ended inside a frame"):
        next(received)


def test_a_frame_that_nobody_would_accept_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_FRAME_BYTES", 10)
    with pytest.raises(BrokenFrame, match="a frame of 11 bytes"):
        frame(bytes(11))


def test_a_writer_never_waits_for_a_reader_and_keeps_the_order(pair: Pair) -> None:
    """Large and small frames, more than the socket holds, are written while nobody reads."""
    writer = FrameWriter(pair[0].fileno())
    sent = [bytes([turn]) * (1 if turn % 3 else 100_000) for turn in range(60)]
    for payload in sent:
        writer.write(lambda payload=payload: [payload], is_large=len(payload) > 1)  # type: ignore[misc]
    received = iter(FrameReader(pair[1].fileno()))
    assert [next(received) for _ in sent] == sent
    writer.close()
    writer.join()


def test_a_small_frame_is_written_on_the_thread_that_sends_it(pair: Pair) -> None:
    writer = FrameWriter(pair[0].fileno(), name="small")
    writer.write(lambda: [b"now"])
    assert all(thread.name != "onward-small" for thread in threading.enumerate())
    assert os.read(pair[1].fileno(), 100) == frame(b"now")


def test_writing_to_nobody_is_not_an_error(pair: Pair) -> None:
    pair[1].close()
    writer = FrameWriter(pair[0].fileno())
    for _ in range(3):
        writer.write(lambda: [b"lost"])
        writer.write(lambda: [b"lost"], is_large=True)
    writer.close()
    writer.join()
