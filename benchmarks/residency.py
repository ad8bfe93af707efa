"""What dropping file pages saves: resident memory of `onward serve` with and without it, when ready and in use.

Once a model is loaded, the engine's process drops the file pages that only loading needed
(`onward.residency.drop_file_pages`). They are clean pages of the page cache, which the kernel may reclaim anyway, so
this measures what the process is charged for, not memory that other programs would lack. Linux only. `python -m
benchmarks.residency`.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.request

from benchmarks import measure
from benchmarks.models import model_id
from benchmarks.processes import resident_memory
from benchmarks.server_process import Server, serve

MIB = 2**20
WORKER = (
    "import onward.residency as residency; residency.drop_file_pages = lambda *name_prefixes: 0; "
    "from onward.compose.worker import main; main()"
)
WITHOUT_DROPPING = (
    f"import sys, onward.compose.spare as spare; spare.WORKER = (sys.executable, '-c', {WORKER!r}); "
    "from onward.cli.main import main; sys.exit(main())"
)
PROGRAMS = {
    "with": (sys.executable, "-m", "onward"),
    "without": (sys.executable, "-c", WITHOUT_DROPPING),
}


def measure_program(model: str, program: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Return MiB of (anonymous memory, file pages) of a server that is ready, and after one request."""
    with serve(model, program=program) as server:
        ready = _mebibytes(server)
        _complete(server, model)
        return {"ready": ready, "after one request": _mebibytes(server)}


def _mebibytes(server: Server) -> tuple[float, float]:
    sizes = resident_memory(server.pid)
    if sizes is None:
        raise SystemExit("This system does not report the resident memory of a process: run it on Linux.")
    return (sizes["anonymous"] + sizes["kv"]) / MIB, sizes["file"] / MIB


def _complete(server: Server, model: str) -> None:
    body = json.dumps({"model": model_id(model), "prompt": "Once upon a time", "max_tokens": 64, "seed": 1}).encode()
    request = urllib.request.Request(f"{server.url}/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        response.read()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.residency", description=__doc__)
    parser.add_argument("--model", default="storyteller", help="a built-in name or a folder")
    options = parser.parse_args()
    for name, program in PROGRAMS.items():
        for moment, (anonymous, file_pages) in measure_program(options.model, program).items():
            print(
                f"{name:8} dropping, {moment:18} {anonymous + file_pages:6,.0f} MiB resident: "
                f"{anonymous:,.0f} MiB anonymous, {file_pages:,.0f} MiB of files"
            )


if __name__ == "__main__":
    measure.run_main(main)
