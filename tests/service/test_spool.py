"""The spool that a killed server leaves behind, and its recovery; full disks; the size of the file."""

from __future__ import annotations

import asyncio
import errno
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.errors import SetupError
from onward.service import spool as spool_module
from onward.service.records import LedgerRow
from onward.service.spool import ADOPT_SECONDS, TICK_SECONDS, Spool
from onward.service.spool_file import WHOLE, SpoolFile, put_line, read_entries
from tests.examples import examples
from tests.server.fakes import in_loop, skip
from tests.waiting import wait_for

from .spool_rows import entry, running


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_kill_at_any_moment_leaves_what_clients_have_seen(seed: int, tmp_path: Path) -> None:
    """Also while the file is written anew."""
    seen, rng = tmp_path / "seen", random.Random(seed)
    command = [sys.executable, "-m", "tests.service.spool_rows", str(tmp_path / "spool"), str(seen)]
    victim = subprocess.Popen(command, cwd=Path(__file__).parents[2])
    wait_for(lambda: seen.exists() and seen.stat().st_size > 100_000, "a server that serves")
    time.sleep(rng.uniform(0, 0.05))
    victim.kill()
    victim.wait()
    counts = dict(
        line.split() for line in seen.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")
    )
    spool = Spool(tmp_path / "spool", "next")
    found = {each.row.id: each.row.completion_tokens for each in spool.ended()}
    spool.close()
    running = {id: int(count) for id, count in counts.items() if count != "ledger"}
    assert running and files(tmp_path / "spool") == ["next"]
    for id, count in running.items():
        assert found[id] >= count


def test_a_running_server_adopts_spools_too_and_says_so(tmp_path: Path) -> None:
    adopted: list[int] = []
    now = [0.0]
    spool = Spool(tmp_path, "a", lambda: adopted.append(len(spool.ended())), lambda: now[0])
    left = Spool(tmp_path, "b")
    left.end(entry("x"))
    left.close()
    spool.tend()
    now[0] = ADOPT_SECONDS
    spool.tend()
    wait_for(lambda: adopted)
    assert adopted == [1]
    spool.close()


def left_by(spool: Spool) -> dict[str, LedgerRow]:
    """What the next server would find if the server of this spool were killed now."""
    return {each.row.id: each.row for each in read_entries(spool._file.path)}


HAPPENINGS = st.tuples(
    st.floats(0, 0.2), st.sampled_from(["token", "token", "token", "begin", "end"]), st.integers(0, 3)
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(HAPPENINGS, min_size=1, max_size=40))
def test_a_token_is_in_the_file_100_ms_after_it_was_delivered(happens: list[tuple[float, str, int]]) -> None:
    """Whatever begins and ends meanwhile, and if the event loop is 40 ms late."""

    @in_loop
    async def test() -> None:
        loop = asyncio.get_running_loop()
        counts: dict[str, list[int]] = {}
        ended: set[str] = set()
        delivered: list[tuple[float, str, int]] = []
        with tempfile.TemporaryDirectory() as folder:
            spool = Spool(Path(folder), "a")
            for after, kind, number in [*happens, (1.0, "", 0)]:
                await skip(after)
                now, id = loop.time(), str(number)
                await skip(0)  # timers that are due by now have fired
                known = left_by(spool)
                for moment, each, count in delivered:
                    assert moment > now - 0.06 or known[each].delivered_tokens >= count
                if kind == "begin" and id not in counts:
                    counts[id] = [0]
                    spool.begin(running(id, counts[id]))
                elif kind == "token" and id in counts and id not in ended:
                    counts[id][0] += 1
                    delivered.append((loop.time(), id, counts[id][0]))
                elif kind == "end" and id in counts and id not in ended:
                    ended.add(id)
                    spool.end(entry(id, completion_tokens=counts[id][0], delivered_tokens=counts[id][0]))
            spool.close()

    test()


@in_loop
async def test_beginnings_notes_and_ends_are_in_the_file_at_once(tmp_path: Path) -> None:
    spool, counts = Spool(tmp_path, "a"), [0]
    spool.begin(runs := running("x", counts))
    assert left_by(spool)["x"].completion_tokens == 0
    counts[0] = 5
    spool.note([runs])
    size = spool._file.size
    assert left_by(spool)["x"].completion_tokens == 5
    spool.note([runs])
    assert spool._file.size == size, "there is nothing new"
    spool.end(ends := entry("x", completion_tokens=6))
    assert left_by(spool)["x"].completion_tokens == 6
    spool.drop([ends.row])
    assert left_by(spool) == {}
    spool.close()


@in_loop
async def test_a_tick_has_nothing_to_write_where_nothing_runs(tmp_path: Path) -> None:
    spool, counts = Spool(tmp_path, "a"), [0]
    spool.begin(running("x", counts))
    await skip(TICK_SECONDS)
    spool.end(entry("x"))
    await skip(TICK_SECONDS)
    assert not spool._is_ticking
    spool.begin(running("y", counts))
    counts[0] = 1
    await skip(TICK_SECONDS)
    assert left_by(spool)["y"].completion_tokens == 1
    spool.close()


def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, is_full = SpoolFile.append, False

    def full(file: SpoolFile, data: bytes) -> None:
        if is_full:
            append(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        append(file, data)

    monkeypatch.setattr(SpoolFile, "append", full)
    spool = Spool(tmp_path, "a")
    spool.end(entry("before"))
    is_full = True
    for number in range(5):
        spool.end(entry(str(number)))
    assert "No space left" in spool.problem and left_by(spool).keys() == {"before"}
    tended(spool)
    assert spool.problem and left_by(spool).keys() == {"before"} and len(list(tmp_path.iterdir())) == 1
    is_full = False
    tended(spool)
    assert not spool.problem and left_by(spool).keys() == {"before", "0", "1", "2", "3", "4"}
    spool.close()


def test_a_server_that_ends_tries_once_more_to_write_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: SpoolFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool(tmp_path, "a")
    with monkeypatch.context() as patch:
        patch.setattr(SpoolFile, "append", full)
        spool.end(entry("x"))
    assert spool.problem
    spool.close()
    following = Spool(tmp_path, "b")
    assert [each.row.id for each in following.ended()] == ["x"]
    following.close()


def test_a_file_that_cannot_be_rewritten_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = SpoolFile.append

    def append_to_the_first(file: SpoolFile, data: bytes) -> None:
        if file is not first:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(file, data)

    monkeypatch.setattr(spool_module, "MIN_REWRITE_BYTES", 0)
    spool = Spool(tmp_path, "a")
    first = spool._file
    with monkeypatch.context() as patch:
        patch.setattr(SpoolFile, "append", append_to_the_first)
        for number in range(3):
            spool.end(entry(str(number)))
            tending(spool).join()
        assert not spool.problem and spool._file is first and left_by(spool).keys() == {"0", "1", "2"}
    spool.end(entry("3"))
    tending(spool).join()
    assert spool._file is not first and left_by(spool).keys() == {"0", "1", "2", "3"}
    spool.close()


def tending(spool: Spool) -> threading.Thread:
    assert spool._tending is not None
    return spool._tending


def tended(spool: Spool) -> None:
    """Do what is due, and wait for that."""
    spool.tend()
    tending(spool).join()


def test_the_file_stays_small_and_has_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MIN_REWRITE_BYTES", 20_000)

    @in_loop
    async def test() -> None:
        spool = Spool(tmp_path, "a")
        counts = [3]
        spool.begin(runs := running("runs", counts))
        for number in range(300):
            spool.end(each := entry(str(number)))
            if number != 100:
                spool.drop([each.row])
            if spool._tending is not None:
                spool._tending.join()
        counts[0] = 4
        spool.note([runs])
        (path,) = tmp_path.iterdir()
        assert path.stat().st_size < 60_000
        assert {id: row.completion_tokens for id, row in left_by(spool).items()} == {"runs": 4, "100": 0}
        spool.close()

    test()


class LockedSpool(Spool):
    """A spool that takes what is appended meanwhile away only while nobody appends."""

    def __setattr__(self, name: str, value: object) -> None:
        assert name != "_missed" or "_file" not in vars(self) or self._lock.locked()
        super().__setattr__(name, value)


@in_loop
async def test_events_during_a_rewrite_of_the_file_are_in_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, counts = SpoolFile.append, [1]
    copies: list[SpoolFile] = []
    spool = LockedSpool(tmp_path, "a")
    spool.begin(runs := running("runs", counts))
    spool.end(ended := entry("ended"))

    def append_and_go_on(file: SpoolFile, data: bytes) -> None:
        append(file, data)
        if file is not spool._file and b'"put"' in data and not copies:
            copies.append(file)
            counts[0] = 2
            spool.note([runs])
            spool.drop([ended.row])
            spool.end(entry("new"))
            assert read_entries(file.path) == [], "a server that is killed now leaves what the other file has"
            assert check(left_by(spool))

    def check(rows: dict[str, LedgerRow]) -> bool:
        return {id: row.completion_tokens for id, row in rows.items()} == {"runs": 2, "new": 0}

    monkeypatch.setattr(SpoolFile, "append", append_and_go_on)
    spool._rewrite()
    assert copies == [spool._file] and check(left_by(spool)) and len(list(tmp_path.iterdir())) == 1
    spool.close()


def test_a_machine_without_threads_fails_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(spool_module, "MIN_REWRITE_BYTES", 0)
    spool = Spool(tmp_path, "a")
    spool.end(entry("x"))
    spool.tend()
    assert left_by(spool).keys() == {"x"}
    spool.close()


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


@pytest.mark.parametrize("numbers", [(0, 1), (9, 10)])
def test_the_last_of_two_files_of_a_killed_server_counts(tmp_path: Path, numbers: tuple[int, int]) -> None:
    """The other one lacks what came while it could not be written, and was about to be removed."""
    for number, tokens in zip(numbers, (1, 7), strict=True):
        file = SpoolFile(tmp_path, iter([f"a-{number}"]), is_copy=tokens == 7)
        file.append(put_line(entry("x", completion_tokens=tokens)) + (WHOLE if tokens == 7 else b""))
        file.close(removes=False)
    spool = Spool(tmp_path, "b")
    assert [each.row.completion_tokens for each in spool.ended()] == [7] and files(tmp_path) == ["b"]
    spool.close()


def test_a_file_that_cannot_be_adopted_hinders_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the adoption of others nor what this server writes."""
    unlink, now, adopted = Path.unlink, [0.0], [0]

    def unlink_no_d(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith("d-"):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(path, missing_ok)

    def add() -> None:
        adopted[0] += 1

    monkeypatch.setattr(Path, "unlink", unlink_no_d)
    spool = Spool(tmp_path, "a", add, lambda: now[0])
    (tmp_path / "z-0.spool").mkdir()  # cannot be opened, and comes first
    for face in "cd":
        left = Spool(tmp_path, face)
        left.end(entry(face))
        left.close()
    for _ in range(2):
        now[0] += ADOPT_SECONDS
        tended(spool)
    assert adopted == [1] and left_by(spool).keys() == {"c", "d"} and not spool.problem
    assert files(tmp_path) == ["a", "d", "z"]
    spool.close()
    Spool(tmp_path, "e").close()
