"""How long streams are silent while servers replace each other with `--take-over`, and how long a replacement takes.

Closed-loop clients stream from one port. After a while, a second server takes over, then a third one, and so on. The
longest time without a chunk is taken from all streams before the first replacement, and from all after it: a new server
loads its model on the same processors. No request may fail or end early. `python -m benchmarks.handover`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import threading
import time
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from benchmarks import measure
from benchmarks.cluster_deaths import silences
from benchmarks.http_client import Target
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.measure import BenchmarkError
from benchmarks.models import model_id
from benchmarks.outcome import Outcome
from benchmarks.server_process import serve
from benchmarks.workload import Workload

BETWEEN_SECONDS = 3.0
"""From the first request to the first replacement, and after each."""


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Replace the server under load; return the figures. Raises BenchmarkError if a request fails or ends early."""
    outcomes: list[Outcome] = []
    workload = Workload(model_id(options.model), prompt=options.prompt, out=options.out, request_seed=1)
    with ExitStack() as servers:
        url = servers.enter_context(serve(options.model)).url
        load = LoadGenerator(Target.parse(url), workload, Bounds(options.clients * options.waves))
        thread = threading.Thread(target=lambda: outcomes.extend(run_async(lambda: load.closed_loop(options.clients))))
        thread.start()
        time.sleep(BETWEEN_SECONDS)
        begin = time.perf_counter()
        seconds = []
        for _ in range(options.replacements):
            started = time.perf_counter()
            servers.enter_context(serve(options.model, "--port", str(urlsplit(url).port), "--take-over"))
            seconds.append(time.perf_counter() - started)
            time.sleep(BETWEEN_SECONDS)
        if not thread.is_alive():
            raise BenchmarkError("the load ended before the last replacement: raise --waves")
        thread.join()
    failed = {each.error for each in outcomes if each.error}
    if failed or any(each.tokens != options.out for each in outcomes):
        raise BenchmarkError(f"requests failed or ended early: {failed}")
    before, after = silences(outcomes, 0.0, begin), silences(outcomes, begin, math.inf)
    return {
        "requests": len(outcomes),
        "replacements": options.replacements,
        "replacement_seconds": statistics.median(seconds),
        "before_ms": max(each.seconds for each in before) * 1e3,
        "longest_ms": max(each.seconds for each in after) * 1e3,
    }


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("handover", __doc__)
    parser.add_argument("--model", default="storyteller", help="built-in name or path (default storyteller)")
    parser.add_argument("--replacements", type=int, default=4, help="(default 4)")
    parser.add_argument("--clients", type=int, default=8, help="streams at a time (default 8)")
    parser.add_argument("--waves", type=int, default=150, help="requests per client (default 150)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens per prompt (default 64)")
    parser.add_argument("--out", type=int, default=200, help="tokens per completion (default 200)")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures = run(options)
    print(f"{figures['requests']} requests, none failed")
    print(f"{figures['replacements']} replacements, {figures['replacement_seconds']:.1f} s each")
    print(
        f"longest silence of a stream: {figures['before_ms']:.0f} ms before, {figures['longest_ms']:.0f} ms meanwhile"
    )
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
