"""What Onward adds to a llama-server or vLLM that is its engine: time to the first token, per token, and throughput.

`python -m benchmarks.upstream MODEL.gguf` starts a llama-server; with `--vllm URL` the server is a running vLLM, and
MODEL is the folder of its tokenizer. One client streams requests of the same size from the server itself and from
Onward in front of it, in turns and alternating which goes first, with a new prompt each time; it prints medians and
their differences. The smaller the model, the less its own time hides. Then, with vLLM, `--clients` clients send
requests to the one and the other in turns, and the median of the ratios of throughput is printed, with its 95 %
interval.

The client's own time counts on both sides. llama-server closes its connection after each stream, so the client
connects to it each time, as Onward does; other connections are kept.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx2

from benchmarks import peer_build
from benchmarks.http_client import Target
from benchmarks.llama_server import Slots, serve_peer
from benchmarks.load import Bounds, LoadGenerator, run_async
from benchmarks.measure import BenchmarkError, interval, run_main
from benchmarks.outcome import summarise
from benchmarks.server_process import serve
from benchmarks.workload import Workload

PROMPT_TOKENS = 32
WARM_UP = 3
"""Requests to each that are not counted."""
TOKENS = (300, 3000)
"""Prompts are made of the token ids from the first to the one before the second."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A running server. `model`: the name that it gives its model; "" for a llama-server."""

    title: str
    url: str
    model: str = ""

    @property
    def address(self) -> str:
        """As `onward serve --model` takes it."""
        return f"peer={'vllm' if self.model else 'llama'}+{self.url}"

    def request(self, prompt: list[int], num_tokens: int) -> tuple[str, dict[str, Any]]:
        """Return the URL and body of a streamed request to the server itself."""
        plain = {"prompt": prompt, "ignore_eos": True, "temperature": 0, "stream": True}
        if self.model:
            return f"{self.url}/v1/completions", {**plain, "model": self.model, "max_tokens": num_tokens}
        return f"{self.url}/completion", {**plain, "n_predict": num_tokens}


@contextmanager
def engine_of(arguments: argparse.Namespace) -> Iterator[Engine]:
    """Yield the running vLLM, or start a llama-server."""
    if arguments.vllm:
        url = arguments.vllm.rstrip("/")
        yield Engine("vLLM", url, httpx2.get(f"{url}/v1/models").json()["data"][0]["id"])
        return
    program = peer_build.find("llama-server")
    with serve_peer(program, arguments.model, Slots(1, 1024, arguments.threads)) as peer:
        yield Engine("llama-server", peer.url.removesuffix("/v1"))


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


def latency(engine: Engine, onward: str, rounds: int, num_tokens: int) -> None:
    """Print how much Onward adds to the time to the first token and to that of each later one."""
    times: dict[str, list[tuple[float, float]]] = {engine.title: [], "Onward": []}
    with httpx2.Client(timeout=60) as client:
        for number in range(rounds + WARM_UP):
            draw = random.Random(number)
            prompt, other = (draw.choices(range(*TOKENS), k=PROMPT_TOKENS) for _ in range(2))
            own = {"model": "peer", "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True}
            requests = [
                (engine.title, *engine.request(other, num_tokens)),
                ("Onward", f"{onward}/completions", {**own, "temperature": 0, "stream": True}),
            ]
            for name, url, body in reversed(requests) if number % 2 else requests:
                measured = stream_times(client, url, body)
                if number >= WARM_UP:
                    times[name].append(measured)
    for index, name in enumerate(("first token", "each further token")):
        medians = {server: statistics.median(pair[index] for pair in pairs) * 1e3 for server, pairs in times.items()}
        added = medians["Onward"] - medians[engine.title]
        shown = ", ".join(f"{server} {value:.2f} ms" for server, value in medians.items())
        print(f"{name}: {shown}; added {added:.2f} ms", flush=True)


def throughput(engine: Engine, onward: str, clients: int, rounds: int, num_tokens: int) -> None:
    """Print the output tokens per second of clients at a vLLM and at Onward. Raises BenchmarkError."""
    first = count(1_000_000, 10 * clients)

    def rate(url: str, model: str) -> float:
        workload = Workload(model, PROMPT_TOKENS, tokens=TOKENS, out=num_tokens, temperature=0, top_p=1)
        generator = LoadGenerator(Target.parse(url), workload, Bounds(2 * clients, timeout=600), next(first))
        figures = summarise(run_async(lambda: generator.closed_loop(clients)))
        if figures["failed"]:
            raise BenchmarkError(f"requests to {url} failed: {figures['failed']}")
        return float(figures["output_tok_s"])

    arms = {engine.title: (engine.url, engine.model), "Onward": (onward, "peer")}
    rates: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name in reversed(arms) if number % 2 else arms:
            measured = rate(*arms[name])
            if number:  # the first round warms up
                rates[name].append(measured)
    ratios = [there / here for here, there in zip(rates[engine.title], rates["Onward"], strict=True)]
    shown = ", ".join(f"{name} {statistics.median(found):.1f}" for name, found in rates.items())
    low, high = interval([ratios])
    print(f"{clients} clients: {shown} tokens/s; ratio {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upstream", description=__doc__)
    parser.add_argument("model", type=Path, help="a GGUF file, or the folder of the vLLM's tokenizer")
    parser.add_argument("--rounds", type=int, default=40, help="requests to each (default 40)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of each answer (default 32)")
    parser.add_argument("--threads", type=int, default=1, help="threads of llama-server (default 1)")
    parser.add_argument("--tokenizer", metavar="MODEL", help="where Onward cannot read that of the file")
    parser.add_argument("--vllm", metavar="URL", help="a vLLM that runs, such as http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=32, help="at the vLLM (default 32; 0: not measured)")
    parser.add_argument("--waves", type=int, default=5, help="turns of the clients (default 5)")
    arguments = parser.parse_args()
    tokenizer = arguments.tokenizer or (str(arguments.model) if arguments.vllm else "")
    flags = ("--tokenizer", f"peer={tokenizer}") if tokenizer else ()
    with engine_of(arguments) as engine, serve(engine.address, *flags) as onward:
        latency(engine, onward.url, arguments.rounds, arguments.tokens)
        if arguments.vllm and arguments.clients:
            throughput(engine, onward.url, arguments.clients, arguments.waves, arguments.tokens)


if __name__ == "__main__":
    run_main(main)
