"""Writes scores: JSON lines that a later run continues, or a table of tokens as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from onward.cli.batch.journal import BatchJournal
from onward.cli.output.formats import text_cell
from onward.cli.score.texts import InputText
from onward.errors import SetupError
from onward.machine import room_wanted

COLUMNS = ("id", "index", "token_id", "token", "token_bytes", "logprob", "rank")


class Results(BatchJournal):
    """A file of JSON lines, one per text. `records` has those of earlier runs, by id, without their tokens."""

    RECORD_START = b'{"digest":"'
    RECORD_NAME = "a score"

    def __init__(self, path: Path, num_expected: int = 0) -> None:
        """Raises SetupError as BatchJournal does."""
        self.records: dict[str, dict[str, Any]] = {}
        super().__init__(path, num_expected)

    def key_of(self, record: dict[str, Any]) -> str:
        kept = ("id", "digest", "model", "system_fingerprint", "logprob", "num_tokens", "num_bytes")
        own = {name: record[name] for name in kept}
        own["dropped_context_tokens"] = record.get("dropped_context_tokens", 0)
        self.records[own["id"]] = own
        return str(own["id"])


def pending(texts: Sequence[InputText], results: Results) -> list[InputText]:
    """Return the texts that have no record yet. Raises SetupError where a record is that of another text."""
    for text in texts:
        record = results.records.get(text.id)
        if record is not None and record["digest"] != text.digest:
            raise SetupError(
                f"{results.path} has a score of another text with the id {text.id}: use another file, or remove it."
            )
    return [text for text in texts if text.id not in results.records]


def check_fingerprint(record: dict[str, Any], results: Results) -> None:
    """Raise SetupError if earlier runs used other weights, another version or another precision."""
    for earlier in results.records.values():
        if (earlier["model"], earlier["system_fingerprint"]) != (record["model"], record["system_fingerprint"]):
            raise SetupError(
                f"{results.path} has scores of {earlier['model']} ({earlier['system_fingerprint']}), but this run "
                f"computes {record['model']} ({record['system_fingerprint']}): use another file, or remove it."
            )
        return


def csv_rows(record: dict[str, Any]) -> str:
    """Return the rows of a record's tokens, one per token. Text cells that a spreadsheet would compute get an
    apostrophe; numbers never do."""
    written = io.StringIO()
    rows = csv.writer(written, lineterminator="\n")
    columns = ("token_ids", "tokens", "token_bytes", "token_logprobs", "ranks")
    for index, (token_id, token, raw, logprob, rank) in enumerate(
        zip(*(record[name] for name in columns), strict=True)
    ):
        rows.writerow([text_cell(record["id"]), index, token_id, text_cell(token), raw, logprob, rank])
    return written.getvalue()


class RecordStream:
    """Writes records to a binary stream as they come, in the form "jsonl" or "csv". `name` is for errors;
    `num_expected` is how many records there will be."""

    def __init__(self, form: str, file: BinaryIO, name: str, num_expected: int) -> None:
        self._file, self._name = file, name
        self._is_csv = form == "csv"
        self._num_expected = num_expected
        self._num_written = self._num_bytes = 0
        if self._is_csv:
            self._put(",".join(COLUMNS).encode() + b"\n")

    def write(self, record: dict[str, Any]) -> None:
        """Write one record. Raises OSError; for a full disk, it states the space that the rest needs."""
        self._put(csv_rows(record).encode() if self._is_csv else msgspec.json.encode(record) + b"\n")
        self._num_written += 1

    def _put(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
            self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as problem:
            mean = self._num_bytes / self._num_written if self._num_written else len(data)
            wanted = room_wanted(problem, mean * (self._num_expected - self._num_written))
            raise OSError(problem.errno, f"{problem.strerror}{wanted}", self._name) from None
        self._num_bytes += len(data)


def new_csv(path: Path) -> BinaryIO:
    """Create a CSV file. Raises SetupError if it exists, because rows cannot be continued, or cannot be written."""
    try:
        return path.open("xb", buffering=0)
    except FileExistsError:
        raise SetupError(
            f"{path} exists. A CSV file cannot be continued: remove it, or write JSON lines (-o {path.stem}.jsonl)."
        ) from None
    except OSError as problem:
        raise SetupError(f"{path} cannot be written: {problem.strerror}.") from None
