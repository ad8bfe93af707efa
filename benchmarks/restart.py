"""Time to the first token of a long prompt after a restart of `onward serve`, with --prefix-cache-dir and without.

A server with an empty folder computes the prompt (`cold`), and is asked again (`memory`). It is stopped (`stop`: how
long that takes), and one with the folder and one without it are started and asked, in alternation (`disk`, `computed`).
"""

from __future__ import annotations

import argparse
import shlex
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.http_client import send_once
from benchmarks.load import run_async
from benchmarks.measure import BenchmarkError
from benchmarks.models import find_model
from benchmarks.outcome import parse_outcome
from benchmarks.server_process import serve
from benchmarks.workload import Workload


def first_token(url: str, workload: Workload, number: int = 0) -> tuple[float, int]:
    """Return the seconds to the first token of a prompt, and how many of its tokens were cached. Raises
    BenchmarkError."""
    outcome = parse_outcome(run_async(lambda: send_once(url, workload.body(number))))
    if outcome.ttft is None:
        raise BenchmarkError(f"a request failed: {outcome.error}")
    return outcome.ttft, outcome.cached_tokens


def after_start(model: str, flags: list[str], workload: Workload) -> tuple[float, int]:
    """Start a server, let it compute another prompt, and return `first_token`."""
    with serve(model, *flags) as server:
        first_token(server.url, Workload(workload.model, prompt=16, out=2), 1)
        return first_token(server.url, workload)


def measured(model: str, prompt: int, runs: int, flags: list[str]) -> dict[str, Any]:
    """Return medians in seconds by kind, and how many tokens were cached."""
    found_model = find_model(model)
    context = found_model.files.facts().get("context_length")
    prompt = min(prompt, context - 2) if isinstance(context, int) else prompt
    workload = Workload(found_model.id, prompt=prompt, out=2)
    found: dict[str, list[tuple[float, int]]] = {"cold": [], "memory": [], "disk": [], "computed": []}
    stops: list[float] = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as parent:
            folder = ["--prefix-cache-dir", str(Path(parent) / "cache")]
            with serve(model, *flags, *folder) as server:
                first_token(server.url, Workload(workload.model, prompt=16, out=2), 1)
                found["cold"].append(first_token(server.url, workload))
                found["memory"].append(first_token(server.url, workload))
                begin = time.perf_counter()
            stops.append(time.perf_counter() - begin)
            found["disk"].append(after_start(model, [*flags, *folder], workload))
            found["computed"].append(after_start(model, flags, workload))
    seconds: dict[str, Any] = {kind: measure.median_of([each for each, _ in pairs]) for kind, pairs in found.items()}
    seconds["stop"] = measure.median_of(stops)
    return {"prompt": prompt, "seconds": seconds, "cached_tokens": {kind: pairs[0][1] for kind, pairs in found.items()}}


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("restart", __doc__)
    parser.add_argument("--model", default="storyteller", help="a name, file or folder, as for `onward serve`")
    parser.add_argument(
        "--prompt", type=int, default=2000, help="tokens of the prompt, or as many as the model takes (default 2000)"
    )
    parser.add_argument("--runs", type=int, default=3, help="restarts of each kind (default 3)")
    parser.add_argument("--serve", type=shlex.split, default=[], metavar="FLAGS", help="flags of the server")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures = measured(options.model, options.prompt, options.runs, options.serve)
    for kind, found in figures["seconds"].items():
        cached = figures["cached_tokens"].get(kind)
        words = "" if cached is None else f", {cached} of {figures['prompt']} tokens cached"
        print(f"{kind:10}{found['median'] * 1e3:9.1f} ms{words}")
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
