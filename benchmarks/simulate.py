"""What pacing does to throughput and waiting, in virtual time: the real engine over a model that only knows how long
its steps take.

`python -m benchmarks.simulate` takes seconds where a measurement takes minutes, and nothing else on the machine
disturbs it: for choosing constants of engine/pacing.py, and for tests of what they must not do. Figures of a machine
come from `benchmarks.engine`.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from benchmarks.in_process import InProcess
from benchmarks.outcome import Outcome
from onward.engine.model import Hook, Row, StepShape, nothing
from onward.engine.pacing import MOST_PROMPT_TOKENS
from onward.runtimes.toy.tokenizer import ToyTokenizer

STEP_MS = {
    1: 15.5, 2: 16.0, 4: 17.5, 8: 20.8, 16: 27.4, 24: 33.7, 32: 37.3, 40: 40.9, 48: 46.2, 56: 52.8, 64: 56.0,
    65: 85.0, 96: 95.0, 128: 105.0, 129: 133.0, 192: 153.0, 193: 183.0, 256: 198.0, 257: 229.0, 512: 382.0,
}  # fmt: skip
"""Milliseconds of steps of so many tokens with prompts of some 100 tokens: a 0.5B model with 8-bit weights on two
cores, where matrix kernels compute tiles of 64 tokens. Between them it grows evenly. Measured once, by hand, like the
constants below: what is simulated depends on the shape, not on the last digit."""
CHANGE_MS = 4.2
"""More when a step has another number of tokens than the one before."""
BESIDE_MS = 0.3
"""What the engine does between steps."""
SAMPLE_MS = 0.09
"""More for every row of logits: sampling, and the output layer."""
CONTEXT_MS = 0.0002
"""Attention: for each token of a step, and each token before it."""


class TimedModel:
    """Random logits, and a clock that a step puts forward by what it would take.

    `unsteady` 0 … 1: how much single steps vary, and the machine's speed wanders, as on a machine that others use.
    """

    context_length, blocks = 8192, 4096
    shape = StepShape()

    def __init__(self, vocab_size: int, seed: int = 0, unsteady: float = 0.0) -> None:
        self.vocab_size = vocab_size
        self.now = 0.0
        """Seconds."""
        self.steps: list[tuple[int, int, float]] = []
        """Of each: rows that wrote, prompt tokens read, seconds."""
        self.random = np.random.default_rng(seed)
        self._unsteady, self._wandered, self._before = unsteady, 0.0, 0

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        before_compute()
        tokens, outputs = sum(len(row.tokens) for row in rows), sum(row.outputs for row in rows)
        writers = sum(len(row.tokens) == 1 for row in rows)
        seconds = self._seconds(rows, tokens, outputs, writers) * self._weather()
        self.now += seconds
        self.steps.append((writers, tokens - writers, seconds))
        return self.random.normal(size=(outputs, self.vocab_size)).astype(np.float32)

    def _seconds(self, rows: Sequence[Row], tokens: int, outputs: int, writers: int) -> float:
        size = padded(tokens, singles=writers == tokens)
        context = sum(len(row.tokens) * (row.start + len(row.tokens) / 2) for row in rows)
        changed = CHANGE_MS if size != self._before else 0.0
        self._before = size
        return (step_ms(size) + changed + CONTEXT_MS * context + BESIDE_MS + SAMPLE_MS * outputs) / 1e3

    def _weather(self) -> float:
        """What this step takes more or less than usual, as a factor."""
        self._wandered = 0.995 * self._wandered + self.random.normal(0.0, 0.012 * self._unsteady)
        return math.exp(self._wandered + self.random.normal(0.0, 0.06 * self._unsteady))

    def copy_block(self, source: int, target: int) -> None:
        pass

    def close(self) -> None:
        pass


def step_ms(tokens: int) -> float:
    """Milliseconds of a step of so many tokens, were their context empty."""
    whole, rest = divmod(tokens, MOST_PROMPT_TOKENS)
    more = float(np.interp(rest, list(STEP_MS), list(STEP_MS.values()))) if rest else 0.0
    return whole * STEP_MS[MOST_PROMPT_TOKENS] + more


def padded(tokens: int, *, singles: bool) -> int:
    """The size a step of so many tokens has: the runtime keeps sizes few (runtimes/openvino/batch.py)."""
    if tokens == 1:
        return 1
    grain = 2 if tokens <= 8 else 4 if singles else 8
    return -(-tokens // grain) * grain


@dataclass(frozen=True, slots=True)
class Load:
    """`clients` that each send the next request when one is answered, `think` seconds later (half to one and a half
    times that: what HTTP takes)."""

    clients: int
    prompt: int
    out: int
    waves: int
    think: float = 0.006


def simulate(load: Load, seed: int = 0, unsteady: float = 1.0) -> list[Outcome]:
    """All requests of a load, in the order in which they ended."""
    engine, model = _engine(seed, unsteady)
    prompts = iter(model.random.integers(0, model.vocab_size, (load.clients * load.waves, load.prompt)).tolist())
    coming = [0.001 * client for client in range(load.clients)]
    ended: list[Outcome] = []
    while len(ended) < load.clients * load.waves:
        while coming and (coming[0] <= model.now or engine.engine.idle):
            model.now = max(model.now, heapq.heappop(coming))
            if prompt := next(prompts, None):
                engine.submit(prompt, load.out)
        for outcome in engine.step():
            ended.append(outcome)
            heapq.heappush(coming, model.now + load.think * (0.5 + model.random.random()))
    return ended


def beside(writers: int, length: int, seed: int = 0, unsteady: float = 1.0) -> tuple[list[float], list[float]]:
    """Seconds of the steps of `writers` streams: before a prompt of `length` tokens comes, and until it is read."""
    engine, model = _engine(seed, unsteady)
    for prompt in model.random.integers(0, model.vocab_size, (writers, 128)).tolist():
        engine.submit(prompt, 4000)
    for _ in range(80):
        engine.step()
    quiet = [seconds for _, _, seconds in model.steps[-50:]]
    engine.submit(model.random.integers(0, model.vocab_size, length).tolist(), 1)
    before = len(model.steps)
    while not engine.step():
        pass
    return quiet, [seconds for _, _, seconds in model.steps[before:]]


def behind(longs: int, writers: int = 0, *, length: int = 4000, short: int = 64, seed: int = 0) -> float:
    """Seconds to the first token of a short prompt that comes when some of `longs` prompts of `length` tokens are being
    read and the others wait, beside so many streams."""
    engine, model = _engine(seed, unsteady=0.0)
    for _ in range(writers):
        engine.submit(model.random.integers(0, model.vocab_size, 128).tolist(), 4000)
    while len(model.steps) < 40 * bool(writers):
        engine.step()
    for _ in range(longs):
        engine.submit(model.random.integers(0, model.vocab_size, length).tolist(), 1)
    for _ in range(min(longs, 4)):
        engine.step()
    sent = model.now
    engine.submit(model.random.integers(0, model.vocab_size, short).tolist(), 1)
    while True:
        for outcome in engine.step():
            if outcome.sent == sent:
                return outcome.ended - sent


def lockstep_tok_s(load: Load) -> float:
    """Output tokens a second when prompts are read together, then all rows decode together; no engine at all."""
    prompts = load.clients * load.prompt
    chunks = [min(MOST_PROMPT_TOKENS, prompts - done) for done in range(0, prompts, MOST_PROMPT_TOKENS)]
    milliseconds = sum(map(step_ms, chunks)) + 2 * CHANGE_MS
    milliseconds += CONTEXT_MS * load.clients * load.prompt**2 / 2
    for position in range(load.prompt, load.prompt + load.out - 1):
        milliseconds += step_ms(padded(load.clients, singles=True)) + CONTEXT_MS * load.clients * position
    return load.clients * load.out / milliseconds * 1e3


def figures(load: Load, outcomes: list[Outcome]) -> dict[str, float]:
    """Throughput as a fraction of lockstep; milliseconds to first tokens and between tokens, after the first wave."""
    later = sorted(outcomes, key=lambda outcome: outcome.sent)[load.clients :]
    first = [outcome.first * 1e3 for outcome in later if outcome.first is not None]
    gaps = [gap * 1e3 for outcome in later for gap in outcome.gaps]
    seconds = max(outcome.ended for outcome in outcomes)
    return {
        "of_lockstep": sum(outcome.tokens for outcome in outcomes) / seconds / lockstep_tok_s(load),
        "ttft_p50": measure.percentile(first, 50) or 0.0,
        "ttft_p95": measure.percentile(first, 95) or 0.0,
        "itl_p50": measure.percentile(gaps, 50) or 0.0,
        "itl_p95": measure.percentile(gaps, 95) or 0.0,
    }


def _engine(seed: int, unsteady: float) -> tuple[InProcess, TimedModel]:
    vocabulary = ToyTokenizer()
    model = TimedModel(vocabulary.size, seed, unsteady)
    return InProcess(model, vocabulary, clock=lambda: model.now), model


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Prints each load as soon as it is simulated."""
    found: dict[str, Any] = {}
    print(f"{'clients':>7}{'seed':>6}{'of lockstep':>13}{'TTFT p50':>10}{'p95':>9}{'ITL p50':>9}{'p95':>9}  ms")
    for clients in options.clients:
        load = Load(clients, options.prompt, options.out, max(2, options.requests // clients), options.think / 1e3)
        for seed in range(options.seeds):
            got = figures(load, simulate(load, seed, options.unsteady))
            found[f"{clients} clients, seed {seed}"] = got
            print(
                f"{clients:>7}{seed:>6}{got['of_lockstep']:13.1%}{got['ttft_p50']:10.0f}{got['ttft_p95']:9.0f}"
                f"{got['itl_p50']:9.0f}{got['itl_p95']:9.0f}",
                flush=True,
            )
    found |= _report_behind(options)
    return found


def _report_behind(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    print("TTFT of a prompt of 64 tokens behind prompts of 4,000: idle otherwise, and beside 4 streams")
    for longs in options.behind:
        seconds = [behind(longs, writers) for writers in (0, 4)]
        found[f"behind {longs}"] = seconds
        print(f"{longs:>7}" + "".join(f"{each * 1e3:10.0f}" for each in seconds) + "  ms", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulate", description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument("--behind", type=int, nargs="*", default=[0, 1, 4, 12], help="long prompts before a short one")
    parser.add_argument("--prompt", type=int, default=128, help="tokens a prompt (default 128)")
    parser.add_argument("--out", type=int, default=64, help="tokens a completion (default 64)")
    parser.add_argument("--requests", type=int, default=400, help="about so many a load (default 400)")
    parser.add_argument("--think", type=float, default=6.0, help="ms from an answer to the next request (default 6)")
    parser.add_argument("--unsteady", type=float, default=1.0, help="0 to 1: how much steps vary (default 1)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each load (default 3)")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    at_start = measure.begin()
    measure.write_report(options.json, "simulate", report(options), at_start)
    return 0


if __name__ == "__main__":
    sys.exit(main())
