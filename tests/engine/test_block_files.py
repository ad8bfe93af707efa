"""Files of KV blocks: what is read is what was written, whatever happens to the files in between."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from onward.engine import block_files
from onward.engine.block_files import (
    BlockFiles,
    Forgotten,
    Missing,
    Unusable,
    family_of,
    forget,
    next_key,
    root_key,
)
from onward.engine.block_files import usage as usage_of
from onward.engine.prefix_tree import pack
from onward.private_files import PrivateFolder, private_folder
from onward.sampling.outputs import Sampled
from tests.waiting import PATIENCE_SECONDS, wait_for

from .block_writing import BLOCK, FILE, content, get, has, key_of, opened, put, whole

ROOT = Path(__file__).parents[2]
WRITER = (sys.executable, "-m", "tests.engine.block_writing")
needs_links = pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.kv")
    return path


@pytest.mark.parametrize("top", [0, 1, 3])
@pytest.mark.parametrize("with_ranks", [False, True])
@pytest.mark.parametrize("count", [0, 1, 32])
def test_a_block_is_read_as_it_was_written_with_its_scores(
    folder: Path, top: int, with_ranks: bool, count: int
) -> None:
    entries = [
        None if not index else Sampled(index, -0.1 * index, tuple((each, -float(each)) for each in range(top)), index)
        for index in range(count)
    ]
    scores = pack(entries, top, with_ranks=with_ranks) if count else None
    assert put(opened(folder), 1, scores) == only_file(folder).stat().st_size
    data, found = get(opened(folder), 1)
    assert data == whole(1)
    assert (found is None) == (scores is None)
    if found is not None and scores is not None:
        assert found.unpack(top, with_ranks=with_ranks) == scores.unpack(top, with_ranks=with_ranks)
        assert (found.top, found.ranks is None) == (scores.top, not with_ranks)


def test_a_key_covers_model_salt_and_all_tokens_so_far() -> None:
    first = root_key("model", "salt")
    keys = [
        next_key(first, [1, 2]),
        next_key(first, [1, 3]),
        next_key(root_key("other", "salt"), [1, 2]),
        next_key(root_key("model", ""), [1, 2]),
        next_key(next_key(first, [1]), [2]),
    ]
    assert len(set(keys)) == len(keys)


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-1],
    "cut to its header": lambda data: data[:68],
    "cut to half of its header": lambda data: data[:30],
    "empty": lambda data: b"",
    "longer": lambda data: data + b"x",
    "zeros": lambda data: bytes(len(data)),
    "another kind of file": lambda data: b"GIF89a" + data[6:],
    "its first byte": lambda data: data[:68] + bytes([data[68] ^ 1]) + data[69:],
    "its last bit": lambda data: data[:-1] + bytes([data[-1] ^ 128]),
    "its digest": lambda data: data[:20] + bytes([data[20] ^ 1]) + data[21:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_a_miss(folder: Path, damage: str) -> None:
    put(opened(folder), 1)
    path = only_file(folder)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(Unusable):
        get(opened(folder), 1)


def test_no_byte_of_a_file_can_change_unnoticed(folder: Path) -> None:
    scores = pack([None, Sampled(5, -1.0, ((5, -1.0),), 1)], 1, with_ranks=True)
    files = opened(folder)
    put(files, 1, scores)
    path = only_file(folder)
    data = path.read_bytes()
    for index in [*range(100), *range(100, len(data), 97), *range(len(data) - 60, len(data))]:
        path.write_bytes(data[:index] + bytes([data[index] ^ 4]) + data[index + 1 :])
        with pytest.raises(Unusable):
            get(files, 1)
    path.write_bytes(data)
    assert get(files, 1)[0] == whole(1)


def test_a_file_under_another_key_is_a_miss(folder: Path) -> None:
    put(opened(folder), 1)
    only_file(folder).rename(folder / f"{key_of(2).hex()}.kv")
    with pytest.raises(Unusable):
        get(opened(folder), 2)


def test_a_block_of_another_size_is_a_miss(folder: Path) -> None:
    put(opened(folder), 1)
    other = BlockFiles(folder, 1 << 20, BLOCK + 8)
    with pytest.raises(Unusable):
        other.read(key_of(1), [np.zeros(BLOCK + 8, np.uint8)])


@needs_links
def test_a_link_is_a_miss(folder: Path, tmp_path: Path) -> None:
    put(opened(folder), 1)
    path = only_file(folder)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unusable):
        get(opened(folder), 1)


def test_a_block_that_is_not_there_is_missing(folder: Path) -> None:
    with pytest.raises(Missing):
        get(opened(folder), 1)


def test_other_files_in_the_folder_are_left_alone(folder: Path) -> None:
    files = opened(folder, 5 * FILE)
    for name in ("notes.txt", "short.kv", "zz.kv"):
        (folder / name).write_text("x", encoding="utf-8")
    for number in range(20):
        put(files, number)
    forget(folder)
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "x"


def test_all_files_together_stay_within_the_bound_and_those_used_last_stay(folder: Path) -> None:
    files = opened(folder, 20 * FILE)
    for number in range(40):
        assert put(files, number) == FILE
        if has(files, 3):
            files.touch([key_of(3)], 10**18 + number)
        assert sum(path.stat().st_size for path in folder.glob("*.kv")) <= 20 * FILE
    assert has(files, 3) and all(has(files, number) for number in range(30, 40)) and not has(files, 4)
    assert {number for number in range(40) if files.size_of(key_of(number))} == {
        number for number in range(40) if has(files, number)
    }


def test_the_end_of_a_prefix_is_removed_before_its_beginning(folder: Path) -> None:
    files = opened(folder, 16 * FILE)
    for number in range(8):
        put(files, number)
    files.touch([key_of(number) for number in range(8)], 2 * 10**18)
    for number in range(100, 111):
        put(files, number, ns=3 * 10**18)
    found = [has(files, number) for number in range(8)]
    assert found == sorted(found, reverse=True) and found[0] and not found[-1]


def test_a_block_that_is_larger_than_the_bound_is_not_written(folder: Path) -> None:
    assert put(opened(folder, FILE), 1) == 0
    assert not list(folder.glob("*.kv"))


def test_a_folder_that_is_too_large_is_cut_when_it_is_opened(folder: Path) -> None:
    for number in range(20):
        put(opened(folder), number)
    files = opened(folder, 8 * FILE)
    assert sum(path.stat().st_size for path in folder.glob("*.kv")) <= 8 * FILE and has(files, 19)


def test_what_a_killed_process_has_left_is_removed_and_what_is_being_written_is_not(folder: Path) -> None:
    opened(folder)
    for name, age in (("left.tmp", 7200), ("fresh.tmp", 0)):
        (folder / name).write_bytes(b"part")
        os.utime(folder / name, (time.time() - age, time.time() - age))
    opened(folder)
    assert [path.name for path in folder.glob("*.tmp")] == ["fresh.tmp"]


def test_two_servers_share_a_folder(folder: Path) -> None:
    one, two = opened(folder), opened(folder)
    put(one, 1)
    assert not two.size_of(key_of(1))
    two.refresh(two.word)
    assert two.size_of(key_of(1)) == FILE and has(two, 1)
    put(two, 2)
    put(one, 3)
    for files in (one, two):
        files.refresh(files.word)
        assert all(files.size_of(key_of(number)) and has(files, number) for number in (1, 2, 3))
    one.drop([key_of(1)])
    with pytest.raises(Missing):
        get(two, 1)


@pytest.mark.slow
def test_processes_that_write_and_remove_the_same_blocks_read_whole_ones(folder: Path) -> None:
    processes = [subprocess.Popen([*WRITER, "some", folder, first], cwd=ROOT) for first in ("0", "13")]
    assert [process.wait(PATIENCE_SECONDS) for process in processes] == [0, 0]
    assert all(get(opened(folder), number)[0] == whole(number) for number in range(40) if has(opened(folder), number))


@pytest.mark.slow
def test_whatever_a_killed_process_leaves_is_whole_or_a_miss(folder: Path) -> None:
    for _ in range(3):
        process = subprocess.Popen([*WRITER, "endless", folder], cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        wait_for(lambda: list(folder.glob("*.kv")))
        process.kill()
        process.wait()
        process.stdout.close()
        files = opened(folder)
        for path in folder.glob("*.kv"):
            number = next(each for each in range(30) if key_of(each).hex() == path.stem)
            assert get(files, number)[0] == whole(number)


def test_what_was_forgotten_is_not_written_afterwards(folder: Path) -> None:
    files = opened(folder)
    put(files, 1)
    word = files.word
    assert forget(folder) == 1 and usage_of(folder) == (0, 0)
    with pytest.raises(Forgotten) as caught:
        put(files, 2)
    assert not files.size_of(key_of(1)), "nothing is known to be there"
    with pytest.raises(Forgotten):
        files.refresh(files.word)
    files.word = caught.value.word
    put(files, 3)
    with pytest.raises(Forgotten):  # it waited in a queue meanwhile
        files.write(key_of(4), content(4), None, 0, word)
    assert [has(opened(folder), number) for number in (1, 2, 3, 4)] == [False, False, True, False]


def test_forgetting_a_folder_that_does_not_exist_makes_none(folder: Path) -> None:
    assert forget(folder) == 0 and not folder.exists()


def test_nothing_is_written_while_others_forget(folder: Path) -> None:
    files = opened(folder)
    with private_folder(folder) as where, block_files._locked(where, exclusive=True):
        assert put(files, 1) == 0
    assert put(files, 1) == FILE


def test_forgetting_waits_for_a_while_for_one_who_writes_and_hangs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(folder)
    put(files, 1)
    monkeypatch.setattr(block_files, "FORGET_SECONDS", 0.0)
    with private_folder(folder) as where, block_files._locked(where), pytest.raises(OSError, match="another process"):
        forget(folder)
    assert forget(folder) == 1


def test_a_server_that_could_not_read_the_discard_mark_drops_its_blocks_before_it_writes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It started while another server discarded blocks."""
    opened(folder)
    with private_folder(folder) as where, block_files._locked(where, exclusive=True):
        files = opened(folder)
    with pytest.raises(Forgotten) as caught:
        put(files, 1)
    files.word = caught.value.word
    assert put(files, 1) == FILE


def test_a_family_that_is_discarded_is_not_found_read_or_written_until_its_files_are_removed(folder: Path) -> None:
    files = opened(folder)
    after = next_key(key_of(1), [5])
    assert family_of(after) == family_of(key_of(1)) != family_of(key_of(2))
    for key in (key_of(1), after, key_of(2)):
        files.write(key, content(1), None, 10**18, files.word)
    files.discard([family_of(key_of(1))])
    files.refresh(files.word)
    for key in (key_of(1), after):
        assert not files.size_of(key) and not files.write(key, content(1), None, 10**18, files.word)
        with pytest.raises(Missing):
            files.read(key, [np.zeros(BLOCK, np.uint8)])
    assert len(list(folder.glob("*.kv"))) == 3
    before = files.discarded
    files.discard([family_of(key_of(1))])
    files.remove_discarded(before)
    assert not put(files, 1), "it was discarded once more since then"
    files.remove_discarded(files.discarded)
    assert only_file(folder).stem == key_of(2).hex() and files.size_of(key_of(2)) == FILE
    assert put(files, 1) == FILE and has(files, 1)


def test_a_block_that_another_process_removes_at_once_is_not_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, set_time = opened(folder), PrivateFolder.set_time

    def removed_before(private: PrivateFolder, name: str, ns: int) -> None:
        private.remove(name)
        set_time(private, name, ns)

    with monkeypatch.context() as patch:
        patch.setattr(PrivateFolder, "set_time", removed_before)
        assert put(files, 1) == 0
    assert not has(files, 1) and put(files, 1) == FILE and has(files, 1)


def test_a_disk_that_is_nearly_full_is_left_to_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = opened(folder)
    monkeypatch.setattr(block_files, "MIN_FREE_BYTES", 1 << 62)
    with pytest.raises(OSError) as caught:
        put(files, 1)
    assert caught.value.errno == errno.ENOSPC and not list(folder.glob("*.tmp"))


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_folder_that_cannot_be_written_is_read(folder: Path) -> None:
    put(opened(folder), 1)
    (folder / "lock").unlink()
    folder.chmod(0o500)
    try:
        files = opened(folder)
        assert has(files, 1)
        with pytest.raises(OSError):
            put(files, 2)
    finally:
        folder.chmod(0o700)
