"""Files of scores: exact JSON lines that are continued, CSV that no spreadsheet computes."""

from __future__ import annotations

import csv
import errno
import io
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from onward.cli.output.formats import FORMULA_STARTS, text_cell
from onward.cli.score.texts import InputText
from onward.cli.score.writers import RecordStream, Results, check_fingerprint, csv_rows, pending
from onward.errors import SetupError


def record(text: InputText, **more: Any) -> dict[str, Any]:
    return {
        "digest": text.digest,
        "id": text.id,
        "model": "m",
        "system_fingerprint": "fp",
        "logprob": -1.5,
        "num_tokens": 2,
        "num_bytes": 3,
        "tokens": ["=a", "bytes:\\xf0"],
        "token_ids": [5, 6],
        "token_bytes": ["3d61", "f0"],
        "token_logprobs": [-1.0, -0.5],
        "ranks": [1, 2],
    } | more


def test_text_cells_get_an_apostrophe_and_numbers_do_not() -> None:
    rows = list(csv.reader(io.StringIO(csv_rows(record(InputText("-1", "x"))))))
    assert rows == [["'-1", "0", "5", "'=a", "3d61", "-1.0", "1"], ["'-1", "1", "6", "bytes:\\xf0", "f0", "-0.5", "2"]]
    assert all(text_cell(start + "1").startswith("'") for start in FORMULA_STARTS)
    assert text_cell(" =1") == " =1" and text_cell(None) == ""


class Full(io.BytesIO):
    """A file on a disk with room for this many bytes."""

    def __init__(self, room: int, reason: int = errno.ENOSPC) -> None:
        super().__init__()
        self._room, self._reason = room, reason

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._room:
            raise OSError(self._reason, os.strerror(self._reason))
        return super().write(data)


def test_what_the_rest_takes_is_said_where_the_disk_is_full() -> None:
    line = msgspec.json.encode(record(InputText("1", "x"))) + b"\n"
    stream = RecordStream("jsonl", Full(2 * len(line)), "out", 5)
    for _ in range(2):
        stream.write(record(InputText("1", "x")))
    with pytest.raises(OSError, match=f"No space left on device; {3 * len(line)} B are needed there"):
        stream.write(record(InputText("1", "x")))


def test_what_the_rest_takes_is_not_said_of_other_errors() -> None:
    with pytest.raises(OSError, match=r"Input/output error: 'out'$"):
        RecordStream("csv", Full(0, errno.EIO), "out", 5)


def test_a_later_run_finds_what_is_left(tmp_path: Path) -> None:
    texts = [InputText(str(number), f"text {number}") for number in range(3)]
    with Results(tmp_path / "out.jsonl") as results:
        results.append(record(texts[1]))
    with (tmp_path / "out.jsonl").open("ab") as file:
        file.write(b'{"digest":"0')
    with Results(tmp_path / "out.jsonl") as results:
        assert pending(texts, results) == [texts[0], texts[2]]
        assert results.records["1"]["logprob"] == -1.5


def test_scores_of_another_text_or_model_are_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Results(path) as results:
        results.append(record(InputText("1", "a")))
    with Results(path) as results:
        with pytest.raises(SetupError, match="of another text with the id 1"):
            pending([InputText("1", "b")], results)
        check_fingerprint(record(InputText("2", "b")), results)
        with pytest.raises(SetupError, match="use another file"):
            check_fingerprint(record(InputText("2", "b"), system_fingerprint="other"), results)


@pytest.mark.parametrize("theirs", ['{"custom_id": "a"}\n', '{"id":"cmpl-1","object":"text_completion","choices":[]}'])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, theirs: str) -> None:
    """For example an answer on one line: it is not the beginning of a record, as a killed run leaves it."""
    path = tmp_path / "out.jsonl"
    path.write_text(theirs, encoding="utf-8")
    with pytest.raises(SetupError, match="line 1 is not a score"):
        Results(path)
    assert path.read_text(encoding="utf-8") == theirs
