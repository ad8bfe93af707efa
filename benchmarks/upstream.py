"""What Onward adds to a llama-server that is its engine: time to the first token, and per token.

`python -m benchmarks.upstream MODEL.gguf`. Sends streamed requests of the same size to llama-server's own
`/completion` and to Onward in front of it, in turns, the one and the other first, one client, a new prompt each time,
and prints medians and their differences. The smaller the model, the less its own time hides.

The client's own time counts on both sides. llama-server closes its connection behind each stream, so the client
connects to it each time, as Onward does; its connection to Onward is kept.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

import httpx2

from benchmarks import peer_build
from benchmarks.llama_server import Slots, serve_peer
from benchmarks.server_process import serve

PROMPT_TOKENS = 32
WARM_UP = 3
"""Requests to each that are not counted."""


def stream_times(client: httpx2.Client, url: str, body: dict[str, Any]) -> tuple[float, float]:
    """Return the seconds to the first event of a stream, and the seconds per event after it."""
    start = time.perf_counter()
    arrivals: list[float] = []
    with client.stream("POST", url, json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                arrivals.append(time.perf_counter())
    return arrivals[0] - start, (arrivals[-1] - arrivals[0]) / max(1, len(arrivals) - 1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream", description=__doc__)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--rounds", type=int, default=40, help="requests to each (default 40)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each answer (default 32)")
    parser.add_argument("--threads", type=int, default=1, help="threads of llama-server (default 1)")
    parser.add_argument("--tokenizer", metavar="MODEL", help="where Onward cannot read that of the file")
    arguments = parser.parse_args()
    flags = ("--tokenizer", f"peer={arguments.tokenizer}") if arguments.tokenizer else ()
    program = peer_build.find("llama-server")
    slots = Slots(1, 1024, arguments.threads)
    times: dict[str, list[tuple[float, float]]] = {"llama-server": [], "Onward": []}
    with serve_peer(program, arguments.model, slots) as peer:
        address = peer.url.removesuffix("/v1")
        upstream = f"peer={address.replace('http://', 'llama+http://')}"
        with serve(upstream, *flags) as onward, httpx2.Client(timeout=60) as client:
            for number in range(arguments.rounds + WARM_UP):
                draw = random.Random(number)
                prompt, other = (draw.choices(range(300, 3000), k=PROMPT_TOKENS) for _ in range(2))
                plain = {"prompt": other, "n_predict": arguments.tokens, "ignore_eos": True, "temperature": 0}
                own = {"model": "peer", "prompt": prompt, "max_tokens": arguments.tokens, "ignore_eos": True}
                requests: list[tuple[str, str, dict[str, Any]]] = [
                    ("llama-server", f"{address}/completion", {**plain, "stream": True}),
                    ("Onward", f"{onward.url}/completions", {**own, "temperature": 0, "stream": True}),
                ]
                for name, url, body in reversed(requests) if number % 2 else requests:
                    measured = stream_times(client, url, body)
                    if number >= WARM_UP:
                        times[name].append(measured)
    for index, name in enumerate(("first token", "each further token")):
        medians = {server: statistics.median(pair[index] for pair in pairs) * 1e3 for server, pairs in times.items()}
        added = medians["Onward"] - medians["llama-server"]
        shown = ", ".join(f"{server} {value:.2f} ms" for server, value in medians.items())
        print(f"{name}: {shown}; added {added:.2f} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
