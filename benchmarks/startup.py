"""Time from process start to the first token: whole processes in sequence, medians of `--runs`.

`serve`: until the first byte of text of a completion streamed by `onward serve`. `create`: until the first character
that `onward completions create --stream true` prints. `import`: `import onward`, minus an empty interpreter. `peak_…`:
the greatest resident memory of the server's and the engine's process (Linux). `--cold`: the first start too, with an
empty cache: it compiles kernels, builds the tokenizer, and reads the whole file for its fingerprint; and `compile`,
without kernels and with all else in the cache. `--peer`: llama-server on the same GGUF file too.
`python -m benchmarks.startup`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.http_client import send_once
from benchmarks.llama_server import Slots, serve_peer
from benchmarks.load import run_async
from benchmarks.measure import BenchmarkError
from benchmarks.models import model_id
from benchmarks.outcome import parse_outcome
from benchmarks.peer_build import SERVER, find
from benchmarks.server_process import READY, stop
from benchmarks.workload import Workload

PROMPT = "Once upon a time"
NUM_SLOWEST_IMPORTS = 8


def serve_seconds(model: str, cache: Path | None = None, kernels: Path | None = None) -> dict[str, float]:
    """Return the seconds from process start to `ready` and to the first `token`, and where Linux states them the peaks
    of memory in MB, `peak_server` and `peak_engine`. `cache`: the folder of caches; `kernels`: the folder of that of
    compiled kernels; None: the usual ones. Raises BenchmarkError if the server ends early or the request fails."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "onward", "serve", "--port", "0", "--drain", "1", "--model", model]
    command += [] if cache is None else ["--cache-dir", str(cache)]
    changes = {} if kernels is None else {"XDG_CACHE_HOME": str(kernels)}  # no setting moves kernels
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | changes
    )
    try:
        url = _ready_url(process)
        ready = time.perf_counter() - begin
        workload = Workload(model_id(model), out=2, extra={"prompt": PROMPT})
        outcome = parse_outcome(run_async(lambda: send_once(url, workload.body(0))))
        peaks = peak_megabytes(process.pid)
    finally:
        stop(process)
    if outcome.ttft is None:
        raise BenchmarkError(f"the first request failed: {outcome.error}")
    return {"ready": ready, "token": outcome.sent + outcome.ttft - begin, **peaks}


def peak_megabytes(server: int) -> dict[str, float]:
    """Return the greatest resident memory of a server and of its largest child so far, in MB; {} where /proc does not
    state them."""
    try:
        children = Path(f"/proc/{server}/task/{server}/children").read_text(encoding="utf-8").split()
        threads = Path(f"/proc/{server}/task").iterdir()
        children += [pid for thread in threads for pid in (thread / "children").read_text(encoding="utf-8").split()]
        found = {"peak_server": _peak(server)}
        return found | ({"peak_engine": max(map(_peak, map(int, set(children))))} if children else {})
    except OSError:
        return {}


def _peak(process: int) -> float:
    stated = re.search(
        r"^VmHWM:\s*(\d+) kB$", Path(f"/proc/{process}/status").read_text(encoding="utf-8"), re.MULTILINE
    )
    return int(stated[1]) * 1024 / 1e6 if stated else 0.0


@contextmanager
def cold_cache(usual: Path) -> Iterator[Path]:
    """A folder of caches on the same disk with the usual one's models, and nothing else, removed at the end."""
    usual.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".cold-", dir=usual))
    try:
        (folder / "onward").mkdir()
        if (usual / "models").is_dir():
            (folder / "onward" / "models").symlink_to(usual / "models")
        yield folder
    finally:
        shutil.rmtree(folder)


def cold_seconds(model: str) -> dict[str, float]:
    """Return `serve_seconds` of a first start."""
    with cold_cache(_usual_cache()) as cache:
        return serve_seconds(model, cache / "onward", cache)


def compile_seconds(model: str) -> dict[str, float]:
    """Return `serve_seconds` of a start that compiles kernels, and finds everything else in the cache."""
    usual = _usual_cache()
    with cold_cache(usual) as empty:
        return serve_seconds(model, usual, empty)


def _usual_cache() -> Path:
    from onward.settings import resolve

    return resolve().settings.cache_dir


def peer_seconds(gguf: Path) -> dict[str, float]:
    """Return what `serve_seconds` returns, of llama-server. It is asked every tenth of a second whether it is ready."""
    begin = time.perf_counter()
    with serve_peer(find(SERVER), gguf, Slots(1, 512, os.cpu_count() or 1)) as server:
        ready = time.perf_counter() - begin
        outcome = parse_outcome(run_async(lambda: send_once(server.url, Workload("peer", out=2, prompt=4).body(0))))
        peaks = peak_megabytes(server.pid)
    if outcome.ttft is None:
        raise BenchmarkError(f"the first request failed: {outcome.error}")
    return {"ready": ready, "token": outcome.sent + outcome.ttft - begin, **peaks}


def _ready_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).split()[0]
    raise BenchmarkError("`onward serve` ended before it was ready. Run it in a terminal to see why.")


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


def repeat(measurement: Callable[[], dict[str, float]], runs: int, *, warm: bool = True) -> dict[str, Any]:
    """Return medians of `runs` whole processes, with `warm` after one that warms the file cache."""
    if warm:
        measurement()
    found = [measurement() for _ in range(runs)]
    return {name: measure.median_of([each[name] for each in found]) for name in found[0]}


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("startup", __doc__)
    parser.add_argument("--model", default="storyteller", help="a name, file or folder, as for `onward serve`")
    parser.add_argument("--runs", type=int, default=5, help="measured processes of each kind (default 5)")
    parser.add_argument("--cold", action="store_true", help="also measure one first start, and some that compile")
    parser.add_argument("--peer", type=Path, metavar="FILE.gguf", help="also measure llama-server on this file")
    parser.add_argument("--no-create", action="store_true", help="leave out `onward completions create`")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures: dict[str, Any] = {
        "import": repeat(import_seconds, options.runs),
        "cold": repeat(lambda: cold_seconds(options.model), 1, warm=False) if options.cold else {},
        "serve": repeat(lambda: serve_seconds(options.model), options.runs),
        "compile": repeat(lambda: compile_seconds(options.model), options.runs) if options.cold else {},
        "peer": repeat(lambda: peer_seconds(options.peer), options.runs) if options.peer else {},
        "create": {} if options.no_create else repeat(lambda: create_seconds(options.model), options.runs),
        "imports_of_create": [] if options.no_create else slowest_imports(create_command(options.model)),
    }
    for kind in ("import", "cold", "compile", "serve", "peer", "create"):
        for name, found in figures[kind].items():
            is_memory = name.startswith("peak")
            number = found["median"] if is_memory else found["median"] * 1e3
            print(f"{kind:8}{name:12}{number:9.0f} {'MB' if is_memory else 'ms'}")
    for entry in figures["imports_of_create"]:
        print(f"import  {entry['module']:34}{entry['cumulative_ms']:9.0f} ms, including what it imports")
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
