"""What a server that is killed leaves behind, and what becomes of it; full disks; the size of the file."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.errors import SetupError
from onward.service import spool as spool_module
from onward.service.spool import Spool
from onward.service.spool_file import SpoolEntry, SpoolFile, read_entries
from tests.examples import examples
from tests.server.fakes import in_loop
from tests.waiting import until, wait_for

from .spool_rows import entry, running


class SteppedSpool(Spool):
    """A spool that takes its turns when a test moves its clock on, each `late` seconds after it is due. A turn takes
    `writing` seconds. `left` has what a server that is killed leaves: from when on the file has which entries."""

    def __init__(self, folder: Path, face: str = "stepped", *_: Any, late: float = 0.0, writing: float = 0.0) -> None:
        self.now = 1000.0
        self.left: list[tuple[float, dict[str, SpoolEntry]]] = []
        self._late = late
        self._writing = writing
        super().__init__(folder, face, monotonic=lambda: self.now)

    def _run(self) -> None:
        """The thread does nothing."""

    def run_until(self, moment: float) -> None:
        while (due := (self.now if self._wake.is_set() else self.now + self._pause()) + self._late) <= moment:
            self.now = due
            self._wake.clear()
            self._turn()
            self.now += self._writing
            self.left.append((self.now, {each.row.id: each for each in read_entries(self._file.path)}))
        self.now = max(self.now, moment)


def files(folder: Path) -> list[str]:
    return sorted(path.name.partition("-")[0] for path in folder.iterdir())


def test_the_next_server_adopts_what_a_killed_one_left(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    command = [sys.executable, "-m", "tests.service.spool_rows", str(folder)]
    victim = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None and victim.stdout.readline() == "ready\n"
    other = Spool(folder, "other")
    assert other.ended() == [] and files(folder) == ["other", "victim"], "a living server keeps its file"
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    next_one = Spool(folder, "next")
    found = {each.row.id: each for each in next_one.ended()}
    assert {id: each.row.completion_tokens for id, each in found.items()} == {"runs": 7, "ends": 9}
    assert found["runs"].row.delivered_tokens == 7 and found["runs"].row.status == 200
    assert {(each.key_id, each.reservation_id) for each in found.values()} == {("key_1", "reserved")}
    assert files(folder) == ["next", "other"]
    other.close()
    assert files(folder) == ["next"], "nothing is left of a server with nothing to tell"
    next_one.close()
    assert files(folder) == ["next"]
    last = Spool(folder, "last")
    for each in last.ended():
        last.drop([each.row])
    last.close()
    assert files(folder) == []


def test_a_server_that_lives_adopts_too_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "ADOPT_SECONDS", 0.01)
    adopted: list[int] = []
    spool = Spool(tmp_path, "a", lambda: adopted.append(len(spool.ended())))
    left = Spool(tmp_path, "b")
    left.end(entry("x"))
    left.close()
    wait_for(lambda: adopted)
    assert adopted == [1]
    spool.close()


HAPPENINGS = st.tuples(
    st.floats(0, 0.2), st.sampled_from(["token", "token", "token", "begin", "end"]), st.integers(0, 3)
)


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(HAPPENINGS, min_size=1, max_size=60), st.floats(0, 0.01), st.floats(0, 0.02))
def test_a_token_is_in_the_file_100_ms_after_it_was_delivered(
    happens: list[tuple[float, str, int]], late: float, writing: float
) -> None:
    """Whatever begins and ends meanwhile, where a turn begins at most 10 ms late and takes at most 20 ms."""
    with tempfile.TemporaryDirectory() as folder:
        spool = SteppedSpool(Path(folder), late=late, writing=writing)
        counts: dict[str, list[int]] = {}
        ended: set[str] = set()
        delivered: list[tuple[float, str, int]] = []
        moment = spool.now
        for after, kind, number in happens:
            moment += after
            spool.run_until(moment)
            id = str(number)
            if kind == "begin" and id not in counts:
                counts[id] = [0]
                spool.begin(running(id, counts[id]))
            elif kind == "token" and id in counts and id not in ended:
                counts[id][0] += 1
                delivered.append((moment, id, counts[id][0]))
            elif kind == "end" and id in counts and id not in ended:
                ended.add(id)
                spool.end(entry(id, completion_tokens=counts[id][0], delivered_tokens=counts[id][0]))
        spool.run_until(moment + 1)
        spool.close()
    for moment, id, count in delivered:
        known = [entries for since, entries in spool.left if since <= moment + 0.1][-1]
        assert known[id].row.delivered_tokens >= count, (moment, id, count)


def test_requests_that_begin_beside_others_take_no_turns_of_their_own(tmp_path: Path) -> None:
    spool = SteppedSpool(tmp_path)
    spool.begin(running("first", [0]))
    spool.run_until(spool.now)
    assert len(spool.left) == 1, "there was nothing to wait for"
    for number in range(10):
        spool.begin(running(str(number), [0]))
        spool.run_until(spool.now + 0.004)
    assert len(spool.left) == 1
    spool.run_until(spool.now + 0.02)
    assert len(spool.left) == 2 and len(spool.left[-1][1]) == 11
    spool.close()


def test_an_entry_is_written_before_its_request_goes_on(tmp_path: Path) -> None:
    @in_loop
    async def test() -> None:
        spool = Spool(tmp_path, "a")
        each = running("x", [0])
        spool.begin(each)
        await spool.written(each)
        (path,) = tmp_path.iterdir()
        assert [one.row.id for one in read_entries(path)] == ["x"]
        spool.close()

    test()


def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, is_full = SpoolFile.append, True

    def full(file: SpoolFile, data: bytes) -> None:
        if is_full and file.size:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(file, data)

    monkeypatch.setattr(SpoolFile, "append", full)
    monkeypatch.setattr(spool_module, "RETRY_SECONDS", 0.01)

    @in_loop
    async def test() -> None:
        nonlocal is_full
        spool = Spool(tmp_path, "a")
        for number in range(5):
            spool.end(entry(str(number)))
        await spool.flushed()
        assert "No space left" in spool.problem
        is_full = False
        await until(lambda: not spool.problem)
        (path,) = tmp_path.iterdir()
        assert sorted(each.row.id for each in read_entries(path)) == ["0", "1", "2", "3", "4"]
        spool.close()

    test()


def test_the_file_stays_small_and_has_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MIN_REWRITE_BYTES", 20_000)

    @in_loop
    async def test() -> None:
        spool = Spool(tmp_path, "a")
        counts = [3]
        spool.begin(running("runs", counts))
        for number in range(300):
            spool.end(each := entry(str(number)))
            if number != 100:
                spool.drop([each.row])
            if number % 10 == 0:
                await spool.flushed()
        counts[0] = 4
        await spool.flushed()
        (path,) = tmp_path.iterdir()
        assert path.stat().st_size < 60_000
        assert {each.row.id: each.row.completion_tokens for each in read_entries(path)} == {"runs": 4, "100": 0}
        spool.close()

    test()


def test_a_row_that_was_replaced_meanwhile_is_not_dropped(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "a")
    spool.end(first := entry("x"))
    spool.end(entry("x", delivered_tokens=5))
    spool.drop([first.row])
    assert [each.row.delivered_tokens for each in spool.ended()] == [5]
    spool.close()


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="Name another one with --data-dir"):
        Spool(tmp_path / "file" / "spool", "a")


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    left = Spool(tmp_path, "b")
    left.end(entry("x"))
    left.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(b'%08x {"spool":2}\n' % zlib.crc32(b'{"spool":2}'))
    spool = Spool(tmp_path, "a")
    assert spool.ended() == [] and path.exists()
    spool.close()
