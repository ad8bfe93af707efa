"""Ray's own processes on this machine: started, joined and stopped by its command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onward.engines.cluster.connection import MISSING, use_token
from onward.errors import SetupError

START_SECONDS = 120
OBJECT_STORE_BYTES = 200_000_000
"""Bytes of Ray's shared memory, of which Onward needs little: Ray's own default is 30 % of the machine's memory."""
_ESCAPE, _RAISED = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]"), re.compile(r"[\w.]+(?:Error|Exception): ")
"""Colours, and the line of a traceback that names the exception."""
_RECORD = "cluster.json"
"""In the cache folder: the address of the head node that `start_head` has started on this machine."""


def start_head(port: int, resources: dict[str, Any]) -> None:
    """Start a head node on this machine. Only who has this account's token can use it. Raises SetupError."""
    _ray("start", "--head", f"--port={port}", "--include-dashboard=false", *_node_flags(resources))


def record_head(address: str, folder: Path) -> None:
    """Remember in a folder that the head node at an address was started here, for `stop_head`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _RECORD).write_text(json.dumps({"address": address}), encoding="utf-8")


def join(address: str, resources: dict[str, Any]) -> None:
    """Make this machine a node of the cluster at an address. Raises SetupError."""
    use_token()
    _ray("start", f"--address={address}", *_node_flags(resources))


def stop_head(address: str, folder: Path) -> bool:
    """Stop Ray on this machine if the head node at an address was started here; return whether it was."""
    record = folder / _RECORD
    try:
        is_own = bool(json.loads(record.read_text(encoding="utf-8"))["address"] == address)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if is_own:
        _ray("stop", "--grace-period", "10")
        record.unlink(missing_ok=True)
    return is_own


def _node_flags(resources: dict[str, Any]) -> list[str]:
    """`resources`: num_cpus and num_gpus; None and missing ones are found by Ray."""
    flags = ["--disable-usage-stats", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    for name in ("num_cpus", "num_gpus"):
        if resources.get(name) is not None:
            flags.append(f"--{name.replace('_', '-')}={resources[name]}")
    return flags


def _ray(*arguments: str) -> None:
    """Run Ray's command line. Raises SetupError with the end of its output if it fails."""
    if find_spec("ray") is None:
        raise SetupError(MISSING)
    command = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0"}
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=START_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise SetupError(f"`ray {arguments[0]}` has not ended after {START_SECONDS} seconds.") from None
    if ran.returncode:
        left = " `ray stop` ends what it may have left running." if arguments[0] == "start" else ""
        raise SetupError(f"`ray {arguments[0]}` failed: {_reason(ran.stderr, ran.stdout)}{left}")


def _reason(errors: str, output: str) -> str:
    """Return why Ray's command line failed: the exception that ended it, or else the end of what it said."""
    lines, others = ([line for line in _ESCAPE.sub("", each).splitlines() if line.strip()] for each in (errors, output))
    raised = [index for index, line in enumerate(lines) if _RAISED.match(line)]
    return " ".join(lines[raised[-1] :] if raised else [*lines, *others][-3:]) or "without a word"
