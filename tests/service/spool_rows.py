"""Rows of ledgers and spools for tests. As a program it is a server that writes a spool until it is killed."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from onward.service.records import LedgerRow
from onward.service.spool import Spool
from onward.service.spool_file import SpoolEntry, SpoolProgress

NOTHING: dict[str, Any] = dict.fromkeys(
    (
        *("prompt_tokens", "cached_tokens", "completion_tokens", "computed_tokens", "delivered_tokens"),
        *("prompt_cost", "completion_cost", "first_token_ms"),
    ),
    0,
)
EMPTY = LedgerRow(
    id="", started_ms=0, ended_ms=0, key_id="k", key_name="", model="m", fingerprint="", route="", seed="",
    finish_reasons="", status=200, **NOTHING,
)  # fmt: skip


def entry(id: str, **given: Any) -> SpoolEntry:
    return SpoolEntry(replace(EMPTY, id=id, **given), "key_1", "reserved")


def running(id: str, counts: list[int]) -> SpoolEntry:
    """A running request: `counts` has the tokens of its completion."""

    def progress() -> SpoolProgress:
        return (5, 200, 3, 0, counts[0], counts[0], counts[0], 1, 0, 0, "")

    found = entry(id)
    found.progress = progress
    return found


async def main(folder: Path) -> None:
    """Leave one request that runs, one that has ended, and one that is in the ledger."""
    spool = Spool(folder, "victim")
    counts = [1]
    spool.begin(runs := running("runs", counts))
    spool.begin(running("ends", counts))
    spool.end(entry("ends", completion_tokens=9))
    spool.end(done := entry("done"))
    spool.drop([done.row])
    counts[0] = 7
    spool.note([runs])
    print("ready", flush=True)
    time.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
