"""Time from process start to the first token: whole processes in sequence, medians of `--runs`.

`serve`: until the first byte of text of a completion streamed by `onward serve`. `create`: until the first character
that `onward completions create --stream true` prints. `import`: `import onward`, minus an empty interpreter. `python -m
benchmarks.startup`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.http_client import Received, Target, connect
from benchmarks.load import run_async
from benchmarks.measure import BenchmarkError
from benchmarks.models import model_id
from benchmarks.outcome import parse_outcome
from benchmarks.server_process import READY, stop
from benchmarks.workload import Workload

PROMPT = "Once upon a time"
NUM_SLOWEST_IMPORTS = 8


def serve_seconds(model: str) -> dict[str, float]:
    """Return the seconds from process start to `ready` and to the first `token`. Raises BenchmarkError if the server
    ends early or the request fails."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "onward", "serve", "--port", "0", "--drain", "1", "--model", model]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        url = _ready_url(process)
        ready = time.perf_counter() - begin
        workload = Workload(model_id(model), out=2, extra={"prompt": PROMPT})
        outcome = parse_outcome(run_async(lambda: _complete(url, workload)))
    finally:
        stop(process)
    if outcome.ttft is None:
        raise BenchmarkError(f"the first request failed: {outcome.error}")
    return {"ready": ready, "token": outcome.sent + outcome.ttft - begin}


def _ready_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).split()[0]
    raise BenchmarkError("`onward serve` ended before it was ready. Run it in a terminal to see why.")


async def _complete(url: str, workload: Workload) -> Received:
    target = Target.parse(url)
    connection = await connect(target)
    try:
        return await connection.send(target.request(workload.body(0)))
    finally:
        connection.close()


def create_seconds(model: str) -> dict[str, float]:
    """Return the seconds from process start to the first character of the text (`token`) and to the `end`.

    Raises BenchmarkError if the command fails.
    """
    begin = time.perf_counter()
    command = create_command(model)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_local_environment())
    assert process.stdout is not None
    try:
        first = os.read(process.stdout.fileno(), 1)
        token = time.perf_counter() - begin
        process.stdout.read()
        status = process.wait()
    finally:
        process.kill()
        process.stdout.close()
    if status or not first:
        raise BenchmarkError(
            f"`onward completions create` ended with status {status}. Run it in a terminal to see why."
        )
    return {"token": token, "end": time.perf_counter() - begin}


def create_command(model: str) -> list[str]:
    """Return the command of a streamed completion in its own process, printed as text."""
    options = ["--stream", "true", "--format", "text", "--max-tokens", "16", "--seed", "1"]
    return [sys.executable, "-m", "onward", "completions", "create", "-m", model, *options, PROMPT]


def _local_environment() -> dict[str, str]:
    """Return our environment without the variables that would send the request to a server."""
    return {name: value for name, value in os.environ.items() if name not in ("OPENAI_BASE_URL", "ONWARD_BASE_URL")}


def import_seconds() -> dict[str, float]:
    """Return the seconds of an interpreter that imports onward, minus those of one that does nothing."""
    return {"seconds": _python("import onward") - _python("pass")}


def _python(code: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - begin


def slowest_imports(command: list[str]) -> list[dict[str, Any]]:
    """Return the cumulative milliseconds of the slowest imports of a command.

    Imports that run in several threads at once include the time they wait for each other.
    """
    traced = [command[0], "-X", "importtime", *command[1:]]
    output = subprocess.run(traced, capture_output=True, text=True, env=_local_environment()).stderr
    return parse_importtime(output)[:NUM_SLOWEST_IMPORTS]


def parse_importtime(output: str) -> list[dict[str, Any]]:
    """Return top-level packages and modules of onward by cumulative milliseconds, from the output of `-X
    importtime`."""
    found: dict[str, float] = {}
    for line in output.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if not line.startswith("import time:") or len(parts) != 3 or not parts[1].strip().isdecimal():
            continue
        name = parts[2].strip()
        if "." not in name or name.startswith("onward."):
            found[name] = max(found.get(name, 0.0), int(parts[1]) / 1e3)
    ranked = sorted(found.items(), key=lambda item: -item[1])
    return [{"module": name, "cumulative_ms": milliseconds} for name, milliseconds in ranked]


def repeat(measurement: Callable[[], dict[str, float]], runs: int) -> dict[str, Any]:
    """Return medians of `runs` whole processes, after one that warms the file cache."""
    measurement()
    found = [measurement() for _ in range(runs)]
    return {name: measure.median_of([each[name] for each in found]) for name in found[0]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--model", default="storyteller", help="a built-in name or a folder")
    parser.add_argument("--runs", type=int, default=5, help="measured processes of each kind (default 5)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    at_start = measure.start()
    figures: dict[str, Any] = {
        "import": repeat(import_seconds, options.runs),
        "serve": repeat(lambda: serve_seconds(options.model), options.runs),
        "create": repeat(lambda: create_seconds(options.model), options.runs),
        "imports_of_create": slowest_imports(create_command(options.model)),
    }
    for kind in ("import", "serve", "create"):
        for name, found in figures[kind].items():
            print(f"{kind:8}{name:10}{found['median'] * 1e3:9.0f} ms")
    for entry in figures["imports_of_create"]:
        print(f"import  {entry['module']:34}{entry['cumulative_ms']:9.0f} ms, including what it imports")
    measure.write_report(options.json, "startup", figures, at_start)
    return 0


if __name__ == "__main__":
    measure.run_main(main)
