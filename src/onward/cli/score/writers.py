"""Writes scores: JSON lines that a later run continues, or a table of tokens as CSV."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from onward.cli.batch.journal import BatchJournal
from onward.cli.output.formats import text_cell
from onward.cli.score.texts import InputText
from onward.errors import SetupError

CSV_SUFFIX = ".csv"
COLUMNS = ("id", "index", "token_id", "token", "token_bytes", "logprob", "rank")


class Results(BatchJournal):
    """A file of JSON lines, one per text. `records` has those of earlier runs, by id, without their tokens."""

    RECORD_START = b'{"id":"'
    RECORD_NAME = "a score"

    def __init__(self, path: Path) -> None:
        """Raises SetupError as Journal does."""
        self.records: dict[str, dict[str, Any]] = {}
        super().__init__(path)

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


def json_line(record: dict[str, Any]) -> str:
    """Return a record as one line of JSON, with its line break."""
    return msgspec.json.encode(record).decode() + "\n"


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


def stream_writer(form: str, file: IO[str]) -> Callable[[dict[str, Any]], None]:
    """Return what writes records to a stream, as `form` says: "jsonl" or "csv"."""
    if form == "csv":
        file.write(",".join(COLUMNS) + "\n")
    as_text = csv_rows if form == "csv" else json_line

    def write(record: dict[str, Any]) -> None:
        file.write(as_text(record))
        file.flush()

    return write


def new_csv(path: Path) -> IO[str]:
    """Create a CSV file. Raises SetupError if it exists, because rows cannot be continued, or cannot be written."""
    try:
        return path.open("x", encoding="utf-8", newline="")
    except FileExistsError:
        raise SetupError(
            f"{path} exists. A CSV file cannot be continued: remove it, or write JSON lines (-o {path.stem}.jsonl)."
        ) from None
    except OSError as problem:
        raise SetupError(f"{path} cannot be written: {problem.strerror}.") from None


def utf8_stdout() -> IO[str]:
    """Return standard output, which then writes UTF-8 whatever the locale is."""
    with suppress(AttributeError):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]
    return sys.stdout
