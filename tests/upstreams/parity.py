"""The parity table on llama-server alone, and on Onward with llama-server as its engine.

`python -m tests.upstreams.parity [--failures]`. Both serve a tiny random model with the toy's vocabulary. A row passes,
is refused by name (status 400 with "The engine behind this model does not have …"), or fails.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path

import httpx

from tests.parity.rows import ROWS
from tests.parity.servers import PROFILES, Answer, Server
from tests.parity.table import Row
from tests.upstreams.byte_model import llama_server, write_byte_model

REFUSED = b"The engine behind this model does not have"


class Watched(Server):
    """A server that remembers whether it has refused a request for what its engine lacks."""

    has_refused = False

    def send(self, *arguments: object, **more: object) -> Answer:
        answer = super().send(*arguments, **more)  # type: ignore[arg-type]
        self.has_refused |= answer.status == 400 and REFUSED in answer.raw
        return answer


class Alone(Watched):
    """llama-server itself, as if it were Onward: no profiles, no flags."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self._key: dict[str, str] = {}
        self.http = httpx.Client(base_url=url, timeout=30)


def outcome(row: Row, server: Watched) -> tuple[str, str]:
    """Return what became of a row: passed, refused or failed, and why."""
    server.has_refused = False
    try:
        row.check(server)
    except Exception as error:
        return "refused" if server.has_refused else "failed", f"{type(error).__name__}: {str(error)[:300]}"
    return "passed", ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.upstreams.parity", description=__doc__)
    parser.add_argument("--failures", action="store_true", help="print the rows that fail through Onward, and why")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_byte_model(Path(folder) / "toy.gguf")
        with llama_server(model, "-np", "4", "-c", "8192") as url:
            alone = Counter(outcome(row, Alone(url))[0] for row in ROWS if row.on == "default")
            through: Counter[str] = Counter()
            for profile, flags in PROFILES.items():
                address = "toy=" + url.replace("http://", "llama+http://")
                server = Watched("--tokenizer", "toy=toy", *flags, model=address)
                for row in ROWS:
                    if row.on == profile:
                        what, why = outcome(row, server)
                        through[what] += 1
                        if arguments.failures and what == "failed":
                            print(f"{row.id}: {why}", flush=True)
                server.close()
    for name, counts in (("llama-server alone, rows of the default profile", alone), ("through Onward", through)):
        print(f"{name}: " + ", ".join(f"{what} {counts[what]}" for what in ("passed", "refused", "failed")))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
