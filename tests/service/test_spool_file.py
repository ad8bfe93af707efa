"""The lines of a spool: complete ones are read back, whatever a killed server has written."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from onward.file_locks import try_lock
from onward.service import spool_file
from onward.service.records import LedgerRow
from onward.service.spool_file import (
    PROGRESS,
    WHOLE,
    SpoolEntry,
    SpoolFile,
    drop_line,
    progress_line,
    put_line,
    read_entries,
)

from .spool_rows import EMPTY

IDS = st.sampled_from("abc")
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), IDS, st.integers(0, 99)),
        st.tuples(st.just("drop"), IDS, st.just(0)),
        st.tuples(st.just("progress"), IDS, st.integers(0, 99)),
    ),
    max_size=20,
)


def advance(row: LedgerRow, count: int) -> tuple[Any, ...]:
    return tuple(count if name == "completion_tokens" else getattr(row, name) for name in PROGRESS)


def fold(operations: list[tuple[str, str, int]]) -> dict[str, int]:
    known: dict[str, int] = {}
    for kind, id, count in operations:
        if kind == "put" or (kind == "progress" and id in known):
            known[id] = count
        elif kind == "drop":
            known.pop(id, None)
    return known


def encode(operation: tuple[str, str, int]) -> bytes:
    kind, id, count = operation
    row = replace(EMPTY, id=id, completion_tokens=count, key_name="é\n\x00")
    match kind:
        case "put":
            return put_line(SpoolEntry(row, "", None))
        case "drop":
            return drop_line([id])
    return progress_line({id: advance(row, count)})


@given(OPERATIONS, st.floats(0, 1), st.integers(0, 19))
def test_what_is_whole_is_read_back(operations: list[tuple[str, str, int]], cut: float, damaged: int) -> None:
    encoded = [encode(each) for each in operations]
    kept = b"".join(encoded)[: round(cut * sum(map(len, encoded)))]
    ends = [len(b"".join(encoded[: number + 1])) - 1 for number in range(len(encoded))]  # less the line break
    num_whole = sum(end <= len(kept) for end in ends)
    whole = operations[:num_whole]
    if damaged < num_whole:
        start = len(b"".join(encoded[:damaged]))
        kept = kept[:start] + b"~" + kept[start + 1 :]
        whole = whole[:damaged] + whole[damaged + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.spool"
        path.write_bytes(kept)
        found = {entry.row.id: entry.row.completion_tokens for entry in read_entries(path)}
    assert found == fold(whole)


def test_a_copy_has_nothing_before_it_has_everything(tmp_path: Path) -> None:
    file = SpoolFile(tmp_path, iter(["x"]), is_copy=True)
    file.append(put_line(SpoolEntry(EMPTY, "", None)))
    assert read_entries(file.path) == []
    file.append(WHOLE[:-5])
    assert read_entries(file.path) == []
    file.close(removes=True)
    whole = SpoolFile(tmp_path, iter(["y"]), is_copy=True)
    whole.append(put_line(SpoolEntry(EMPTY, "", None)) + WHOLE)
    assert len(read_entries(whole.path)) == 1
    whole.close(removes=True)
    assert not list(tmp_path.iterdir())


def test_a_file_that_another_server_has_taken_and_removed_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the creation of a file and its lock, a server that looks for those of dead ones may find it."""

    def lock(file: int) -> bool:
        (tmp_path / "a.spool").unlink(missing_ok=True)
        return try_lock(file)

    monkeypatch.setattr(spool_file, "try_lock", lock)
    file = SpoolFile(tmp_path, iter("ab"))
    assert file.path == tmp_path / "b.spool" and file.path.exists()
    file.close(removes=True)


def test_a_file_that_cannot_be_begun_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        SpoolFile(tmp_path, iter("a"))
    assert not list(tmp_path.iterdir())
