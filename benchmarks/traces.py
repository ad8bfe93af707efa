"""What traces cost: `onward serve` with and without `--otlp-endpoint`, in alternating rounds, as `benchmarks.ledger`.

Spans go to a process that accepts and discards them. The goal is at most 1 % of the throughput of 32 clients.
`python -m benchmarks.traces`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks import ledger, measure
from benchmarks.ledger import WITH, WITHOUT


class Taker(BaseHTTPRequestHandler):
    """Answers every request as a collector that has accepted the spans."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def take() -> None:
    """Accept spans until this process is terminated; print the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


@contextmanager
def collector() -> Iterator[str]:
    """Run `take` in a process of its own; yield its URL."""
    command = [sys.executable, "-c", "from benchmarks.traces import take; take()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as it:
        try:
            assert it.stdout is not None
            yield it.stdout.readline().strip()
        finally:
            it.terminate()


def run(options: argparse.Namespace) -> dict[str, Any]:
    return ledger.run_sessions(
        options, lambda stack: {WITHOUT: (), WITH: ("--otlp-endpoint", stack.enter_context(collector()))}
    )


def arguments() -> argparse.ArgumentParser:
    parser = ledger.arguments()
    parser.prog, parser.description = "python -m benchmarks.traces", __doc__
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    figures = run(options)
    print(ledger.table(figures))
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
