"""Rows of ledgers and spools for tests. As a program it is a server that writes a spool until it is killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from onward.service import spool as spool_module
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


async def serve_many(folder: Path, seen: Path) -> None:
    """Run requests as fast as they can be noted, with a file that is written anew all the time, and write to `seen`
    what their clients have: a request's id and its tokens, or that its row may be in the ledger."""
    spool_module.MIN_REWRITE_BYTES = 10_000
    spool = Spool(folder, "victim")
    clients = os.open(seen, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    requests: dict[str, tuple[SpoolEntry, list[int]]] = {}
    for number in itertools.count():
        counts = [0]
        each = running(str(number), counts)
        spool.begin(each)
        requests[str(number)] = each, counts
        for id, (entry_of_id, its_counts) in requests.items():
            its_counts[0] += 1
            spool.note([entry_of_id])
            os.write(clients, f"{id} {its_counts[0]}\n".encode())
        if len(requests) == 8:
            id = next(iter(requests))
            _, its_counts = requests.pop(id)
            spool.end(ended := entry(id, completion_tokens=its_counts[0]))
            os.write(clients, f"{id} ledger\n".encode())
            spool.drop([ended.row])


async def main(folder: Path) -> None:
    """Leave one running request, one that has ended, and one that is in the ledger."""
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
    asyncio.run(serve_many(Path(sys.argv[1]), Path(sys.argv[2])) if sys.argv[2:] else main(Path(sys.argv[1])))
