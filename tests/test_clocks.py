"""Durations count by a clock that never jumps; the time of day is asked for only where people or files need it."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "onward"
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
USES = {
    "api/ollama.py": "the `created_at` of an answer",
    "api/openai/reply.py": "the `created` of an answer",
    "cli/source/transport.py": "a date in `retry-after`; the delay is bounded",
    "cli/server_findings.py": "a server's clock against this one's, its start, its certificate's end",
    "cli/key_flags.py": "when a key expires, where a duration from now is given",
    "compose/replica.py": "which of several versions in a cluster started last",
    "kernels/__init__.py": "whether sources have changed since they were imported, by their times on disk",
    "engine/block_files.py": "how old a file on disk is that a killed process left",
    "engine/disk_cache.py": "which blocks on a disk were used last; after a jump others are removed",
    "kernels/object_cache.py": "how old a file on disk is that a killed process left",
    "tracing.py": "when a traced request began; durations within a trace are those of a clock that never jumps",
    "templates/worker.py": "the date that a chat template may write into a prompt",
    "server/keys.py": "whether a key has expired",
    "server/transcript.py": "when a logged request began; the log is kept by days",
    "service/batch_records.py": "ids in the order of their making; each is later than the last, also after a jump",
    "service/request_log.py": "which days of the log are older than it is kept",
    "service/store.py": "days, months and times in a database that several machines share; limits bound a jump",
    "sampling/__init__.py": "whether sources have changed since they were imported, by their times on disk",
}
"""Modules that ask for the time of day, and what for. A jump of the clock must not matter there."""


def wall_clocks(source: str) -> set[str]:
    """The clocks of WALL_CLOCKS that a module names."""
    if not any(clock in source for clock in (*WALL_CLOCKS, "from time import")):
        return set()
    tree = ast.parse(source)
    names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    imported = {
        f"{node.module}.{each.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "time"
        for each in node.names
    }
    return {name for name in names | imported if any(f".{name}".endswith(f".{clock}") for clock in WALL_CLOCKS)}


def test_the_time_of_day_is_asked_for_only_where_a_jump_does_not_matter() -> None:
    found = {
        path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if wall_clocks(path.read_text("utf-8"))
    }
    assert found == set(USES), "count durations by time.monotonic; what needs the time of day has its reason in USES"


def test_modules_that_use_the_time_of_day_are_found() -> None:
    assert wall_clocks("import time\nx = time.time()") == {"time.time"}
    assert wall_clocks("import datetime\nx = datetime.datetime.now()") == {"datetime.datetime.now"}
    assert wall_clocks("from time import time_ns") == {"time.time_ns"}
    assert not wall_clocks("import time\nx = time.monotonic() + time.perf_counter()")
