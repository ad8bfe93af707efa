"""What a streamed token costs between the engine's event and the ASGI message: `python -m benchmarks.front`.

No model, no network: a scripted engine's events go through the embedded backend, the runner and OpenAI's reply to an
ASGI application's `send`. Deterministic but for the machine, so that two checkouts can be compared in alternation
(`--root` is another one's folder). Prints the least and the median milliseconds per 300 tokens.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from onward.backends.embedded import EmbeddedBackend, EmbeddedModel
from onward.backends.shared_engine import SharedEngine
from onward.completions.plan import ServedModel
from onward.engine.client import Deliver, EngineInfo, EngineState
from onward.engine.events import Decoded, Prefilled
from onward.engine.job import Job
from onward.engine_load import EngineLoad
from onward.model_files.toy import ToyTokenizer
from onward.models.registry import ListedModel
from onward.sampling.outputs import Sampled
from onward.server.app import App
from onward.settings import Settings

NUM_TOKENS = 300
NUM_TURNS = 3
"""Turns of the event loop per step: the answer, the reply and the application each have one."""
ALTERNATIVES = tuple((97 + rank, -1.0 - rank) for rank in range(5))


class ScriptedEngine:
    """Implements engine.client.EngineClient: takes jobs and computes nothing."""

    def __init__(self, tokenizer: ToyTokenizer) -> None:
        self.info = EngineInfo(fingerprint="fp", vocab_size=tokenizer.size, context_length=2048, max_rows=64)
        self.state = EngineState("running")
        self.load = EngineLoad()
        self.jobs: Sequence[Job] = ()

    def start(self, deliver: Deliver) -> None:
        self.deliver = deliver

    def submit(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs

    def cancel(self, request: int) -> None: ...

    def cancel_choice(self, job: int, choice: int) -> None: ...

    def stop(self) -> None: ...


async def stream(app: App, engine: ScriptedEngine, fields: dict[str, Any]) -> float:
    """Return how many seconds a stream of NUM_TOKENS takes."""
    body = {"model": "toy", "prompt": "hello", "max_tokens": NUM_TOKENS, "stream": True, **fields}
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    inbox.put_nowait({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
    sent: list[bytes] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("body", b""))

    engine.jobs = ()
    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "scheme": "http",
        "headers": [(b"content-type", b"application/json")], "client": ("127.0.0.1", 1),
    }  # fmt: skip
    task = asyncio.create_task(app(scope, inbox.get, send))
    while not engine.jobs:
        await asyncio.sleep(0)
    await turns(10)
    (job,) = engine.jobs
    top = ALTERNATIVES if fields.get("logprobs") else ()
    steps = [
        Decoded(job.id, 0, [Sampled(97 + i % 26, -0.5, top)], "length" if i == NUM_TOKENS - 1 else None)
        for i in range(NUM_TOKENS)
    ]
    engine.deliver([Prefilled(job.id, 0)])
    await turns(NUM_TURNS)
    started = time.perf_counter()
    for event in steps:
        engine.deliver([event])
        await turns(NUM_TURNS)
    await task
    seconds = time.perf_counter() - started
    assert b"".join(sent).count(b"data: ") == NUM_TOKENS + 1
    return seconds


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def measured(repetitions: int, fields: dict[str, Any]) -> list[float]:
    """Return the seconds of each repetition."""
    tokenizer = ToyTokenizer()
    engine = ScriptedEngine(tokenizer)
    served = ServedModel.create("toy", tokenizer, tokenizer.size, 2048)
    shared = SharedEngine(engine)
    shared.use()
    backend = EmbeddedBackend(
        {"toy": EmbeddedModel(served, shared)}, [ListedModel(id="toy", created=1, owned_by="onward")], {}
    )
    app = App(backend, Settings(model=("toy",)))
    times = []
    for _ in range(repetitions):
        times.append(await stream(app, engine, fields))
        gc.collect()
    return times


def run_in(root: str, arguments: list[str]) -> dict[str, float]:
    """Return what this benchmark prints in a process with another checkout's sources."""
    environ = os.environ | {"PYTHONPATH": f"{root}/src"}
    command = [sys.executable, __file__, "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environ, cwd=root)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--fields", default="{}", help="more fields of the request, in JSON")
    parser.add_argument("--root", help="another checkout, to compare with in alternation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    arguments = ["--repetitions", str(given.repetitions), "--fields", given.fields]
    if given.root is None:
        gc.freeze()
        gc.disable()
        times = asyncio.run(measured(given.repetitions, json.loads(given.fields)))
        found = {"least": min(times) * 1e3, "median": statistics.median(times) * 1e3}
        print(json.dumps(found) if given.json else f"{found['least']:.2f} ms, median {found['median']:.2f} ms")
        return
    here = str(Path(__file__).resolve().parent.parent)
    pairs = [(run_in(given.root, arguments), run_in(here, arguments)) for _ in range(given.rounds)]
    for name in ("least", "median"):
        there, own = (statistics.median(pair[side][name] for pair in pairs) for side in (0, 1))
        print(f"{name}: {there:.2f} ms there, {own:.2f} ms here, ratio {own / there:.3f}")


if __name__ == "__main__":
    main()
