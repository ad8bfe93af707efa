"""The parity table on llama-server or vLLM alone, and on Onward with one of them as its engine.

`python -m tests.engines.upstreams.parity [--engine vllm] [--failures]`. Both serve a tiny random model with the toy's
vocabulary. A row passes, is refused by name (status 400 with "The engine behind this model does not have …"), or fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx2

from tests.engines.upstreams.byte_model import llama_server, write_byte_model
from tests.parity.rows import ROWS
from tests.parity.servers import Answer, Server, Servers
from tests.parity.table import Row
from tests.real_models.vllm.folders import write_byte_folder
from tests.real_models.vllm.install import installed
from tests.real_models.vllm.server import vllm_server

ALONE_SECONDS, ALONE_ROW_SECONDS = 3.0, 8.0
"""How long it may take alone for a request, and for all requests of a row."""
NUM_SLOTS = 4
REFUSED = b"The engine behind this model does not have"


class Watched(Server):
    """A server that remembers whether it has refused a request for what its engine lacks."""

    has_refused = False
    answer_seconds = 300.0
    """Real engines compute two thousand tokens for a row, while this machine does other work."""

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        answer = super().send(method, path, body, headers)
        self.has_refused |= answer.status == 400 and REFUSED in answer.raw
        return answer


class Alone(Watched):
    """The engine itself, as if it were Onward, for one row: no profiles, no flags."""

    def __init__(self, url: str) -> None:
        self._ends_at = time.monotonic() + ALONE_ROW_SECONDS
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self._key: dict[str, str] = {}
        self.http = httpx2.Client(base_url=url, timeout=ALONE_SECONDS)

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """Raises TimeoutError, also for an answer that never ends."""
        own = {"content-type": "application/json"}
        content = b""
        with self.http.stream(method, path, content=body, headers=own) as got:
            for piece in got.iter_bytes():
                content += piece
                self._check()
        return Answer(got.status_code, got.headers, content)

    def _check(self) -> None:
        if time.monotonic() > self._ends_at:
            raise TimeoutError("the row takes too long")


def outcome(row: Row, server: Watched) -> tuple[str, str]:
    """Return the outcome of a row (passed, refused or failed) and the reason."""
    server.has_refused = False
    try:
        row.check(server)
    except Exception as error:
        return "refused" if server.has_refused else "failed", f"{type(error).__name__}: {str(error)[:300]}"
    return "passed", ""


def outcomes(url: str, kind: str = "llama") -> Iterator[tuple[Row, str, str]]:
    """Yield every row with its outcome through Onward, and the reason. Limits of keys are counted before any engine is
    asked: their rows are left out."""
    servers = Servers(partial(Watched, "--tokenizer", "toy=toy", model=f"toy={kind}+{url}"))
    try:
        for row in ROWS:
            if row.on != "team":
                server = servers[row.on]
                assert isinstance(server, Watched)
                yield row, *outcome(row, server)
    finally:
        servers.close()


def check_outcomes(found: list[tuple[Row, str, str]], deviations: Container[str], share: float) -> None:
    """Assert that only rows of `deviations` failed, and that this share passed; the others are refused by name. Prints
    how many of each."""
    counts = Counter(what for _, what, _ in found)
    print(_shown(counts), *(f"{row.id}: {why}" for row, what, why in found if what == "failed"), sep="\n")
    failed = {row.id: why for row, what, why in found if what == "failed" and row.id not in deviations}
    assert not failed, failed
    assert counts["passed"] >= share * len(found), _shown(counts)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engines.upstreams.parity", description=__doc__)
    parser.add_argument("--engine", choices=("llama", "vllm"), default="llama", help="whose server computes")
    parser.add_argument("--failures", action="store_true", help="print the rows that fail through Onward, and why")
    parser.add_argument("--alone", action="store_true", help="also ask the engine itself; takes minutes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _server(arguments.engine, Path(folder)) as url:
        alone: Counter[str] = Counter()
        through: Counter[str] = Counter()
        if arguments.alone:
            for what in alone_outcomes(url):
                alone[what] += 1
                _report("alone", alone)
        for row, what, why in outcomes(url, arguments.engine):
            through[what] += 1
            _report("through Onward", through)
            if arguments.failures and what == "failed":
                print(f"{row.id}: {why}", flush=True)
    scores = {"through Onward": through}
    if arguments.alone:
        scores = {"alone, rows of the default profile": alone, **scores}
    for name, counts in scores.items():
        share = counts["passed"] / max(1, counts.total())
        print(f"{name}: {_shown(counts)} of {counts.total()} rows; {share:.1%} pass")
    return 0


@contextmanager
def _server(kind: str, folder: Path) -> Iterator[str]:
    """Run a server of the tiny model; yield its URL."""
    if kind == "llama":
        model = write_byte_model(folder / "toy.gguf")
        with llama_server(model, "-np", str(NUM_SLOTS), "-c", "8192") as url:
            yield url
    else:
        with vllm_server(installed(), write_byte_folder(folder / "toy")) as url:
            yield url


def alone_outcomes(url: str) -> Iterator[str]:
    """Yield the outcome of every row of the default profile at the engine itself."""
    rows = [row for row in ROWS if row.on == "default"]
    with ThreadPoolExecutor(NUM_SLOTS) as threads:  # most rows that fail wait for ALONE_SECONDS
        yield from threads.map(lambda row: _alone_outcome(row, url), rows)


def _alone_outcome(row: Row, url: str) -> str:
    engine = Alone(url)
    with engine.http:
        return outcome(row, engine)[0]


def _report(name: str, counts: Counter[str]) -> None:
    if sys.stderr.isatty():
        print(f"\r{name}: {_shown(counts)} ", end="", file=sys.stderr, flush=True)


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{what} {counts[what]}" for what in ("passed", "refused", "failed"))


if __name__ == "__main__":
    raise SystemExit(main())
