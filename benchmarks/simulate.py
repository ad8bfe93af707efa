"""Simulate the effect of pacing on throughput and latency in virtual time: the real engine over a model that only has
step durations.

`python -m benchmarks.simulate` takes seconds where a measurement takes minutes, and other programs do not disturb it.
It is for choosing the constants of engine/pacing.py, and for tests of them. `benchmarks.engine` measures a machine.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import measure
from benchmarks.in_process import InProcess
from benchmarks.outcome import Outcome
from onward.engine.model import Hook, Row, nothing
from onward.model_files.toy import ToyTokenizer
from onward.runtimes.native.model import STEP_SHAPE

STEP_MS = {
    1: 7.5, 2: 8.0, 4: 9.0, 8: 12.0, 16: 17.0, 24: 22.5, 32: 27.5, 33: 30.5, 48: 42.0, 64: 53.0, 96: 68.0, 128: 91.0,
    192: 137.0, 256: 184.0, 384: 277.0, 512: 385.0,
}  # fmt: skip
"""Number of tokens → milliseconds of a step, with prompts of about 100 tokens: a 0.5B model in Q8_0 on two cores.
Interpolated linearly. `python -m benchmarks.bare --model .peers/models/qwen05b-Q8_0.gguf --steps` measures them and
ROW_MS; these are half of one thread's processor time. The simulation depends on the shape, not on the last digit."""
OVERHEAD_MS = 0.3
"""Added per step: the engine's own work."""
ROW_MS = 0.29
"""Added per row of logits: output layer and sampling."""
ATTENTION_MS = 0.0002
"""Added per token of a step and token of its context."""

MAX_PREFILL_TOKENS = STEP_SHAPE.max_prefill_tokens


class TimedModel:
    """A model with random logits and a virtual clock, which each step advances by its duration.

    `jitter` in 0 … 1: how much single steps vary and the machine's speed drifts, as on a shared machine.
    """

    context_length, blocks = 8192, 4096
    shape = STEP_SHAPE

    def __init__(self, vocab_size: int, seed: int = 0, jitter: float = 0.0) -> None:
        self.vocab_size = vocab_size
        self.now = 0.0
        """Virtual time in seconds."""
        self.steps: list[tuple[int, int, float]] = []
        """(decoded rows, prefilled tokens, seconds) of each step."""
        self.random = np.random.default_rng(seed)
        self._jitter, self._drift = jitter, 0.0

    def evaluate(self, rows: Sequence[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        before_compute()
        tokens, outputs = sum(len(row.tokens) for row in rows), sum(row.outputs for row in rows)
        decoding = sum(len(row.tokens) == 1 for row in rows)
        seconds = self._seconds(rows, tokens, outputs) * self._jitter_factor()
        self.now += seconds
        self.steps.append((decoding, tokens - decoding, seconds))
        return self.random.normal(size=(outputs, self.vocab_size)).astype(np.float32)

    def _seconds(self, rows: Sequence[Row], tokens: int, outputs: int) -> float:
        context = sum(len(row.tokens) * (row.start + len(row.tokens) / 2) for row in rows)
        return (step_ms(tokens) + ATTENTION_MS * context + OVERHEAD_MS + ROW_MS * outputs) / 1e3

    def _jitter_factor(self) -> float:
        """Return the duration of this step relative to the usual one."""
        self._drift = 0.995 * self._drift + self.random.normal(0.0, 0.012 * self._jitter)
        return math.exp(self._drift + self.random.normal(0.0, 0.06 * self._jitter))

    def block_memory(self, block: int) -> Sequence[NDArray[np.uint8]]:
        return ()

    def close(self) -> None:
        pass


def step_ms(tokens: int) -> float:
    """Return milliseconds of a step of so many tokens without context."""
    full_steps, rest = divmod(tokens, MAX_PREFILL_TOKENS)
    remainder = float(np.interp(rest, list(STEP_MS), list(STEP_MS.values()))) if rest else 0.0
    return full_steps * STEP_MS[MAX_PREFILL_TOKENS] + remainder


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop of `clients` that each send the next request when one is complete, after `think` seconds (times
    0.5 to 1.5), which is what HTTP takes."""

    clients: int
    prompt: int
    out: int
    waves: int
    think: float = 0.006


def simulate(load: Load, seed: int = 0, jitter: float = 1.0) -> list[Outcome]:
    """Return the outcomes of all requests of a load, in the order in which they ended."""
    engine, model = _engine(seed, jitter)
    prompts = iter(model.random.integers(0, model.vocab_size, (load.clients * load.waves, load.prompt)).tolist())
    arrivals = [0.001 * client for client in range(load.clients)]
    ended: list[Outcome] = []
    while len(ended) < load.clients * load.waves:
        while arrivals and (arrivals[0] <= model.now or engine.engine.idle):
            model.now = max(model.now, heapq.heappop(arrivals))
            if prompt := next(prompts, None):
                engine.submit(prompt, load.out)
        for outcome in engine.step():
            ended.append(outcome)
            heapq.heappush(arrivals, model.now + load.think * (0.5 + model.random.random()))
    return ended


def step_seconds_beside_prompt(
    streams: int, length: int, seed: int = 0, jitter: float = 1.0
) -> tuple[list[float], list[float]]:
    """Return the step durations of `streams` streams: before and during the prefill of a prompt of `length` tokens."""
    engine, model = _engine(seed, jitter)
    for prompt in model.random.integers(0, model.vocab_size, (streams, 128)).tolist():
        engine.submit(prompt, 4000)
    for _ in range(80):
        engine.step()
    quiet = [seconds for _, _, seconds in model.steps[-50:]]
    engine.submit(model.random.integers(0, model.vocab_size, length).tolist(), 1)
    before = len(model.steps)
    while not engine.step():
        pass
    return quiet, [seconds for _, _, seconds in model.steps[before:]]


def ttft_behind_prompts(
    num_long: int, streams: int = 0, *, length: int = 4000, short: int = 64, seed: int = 0
) -> float:
    """Return the seconds to the first token of a short prompt submitted while some of `num_long` prompts of `length`
    tokens are prefilling and the others wait, with `streams` streams running."""
    engine, model = _engine(seed, jitter=0.0)
    for _ in range(streams):
        engine.submit(model.random.integers(0, model.vocab_size, 128).tolist(), 4000)
    while len(model.steps) < 40 * bool(streams):
        engine.step()
    for _ in range(num_long):
        engine.submit(model.random.integers(0, model.vocab_size, length).tolist(), 1)
    for _ in range(min(num_long, 4)):
        engine.step()
    sent = model.now
    engine.submit(model.random.integers(0, model.vocab_size, short).tolist(), 1)
    while True:
        for outcome in engine.step():
            if outcome.sent == sent:
                return outcome.ended - sent


def lockstep_tok_s(load: Load) -> float:
    """Return output tokens per second if all prompts prefill together and all rows decode together, without an
    engine."""
    prompts = load.clients * load.prompt
    chunks = [min(MAX_PREFILL_TOKENS, prompts - done) for done in range(0, prompts, MAX_PREFILL_TOKENS)]
    milliseconds = sum(map(step_ms, chunks))
    milliseconds += ATTENTION_MS * load.clients * load.prompt**2 / 2
    for position in range(load.prompt, load.prompt + load.out - 1):
        milliseconds += step_ms(load.clients) + ROW_MS * load.clients + ATTENTION_MS * load.clients * position
    return load.clients * load.out / milliseconds * 1e3


def figures(load: Load, outcomes: list[Outcome]) -> dict[str, float]:
    """Return throughput as a fraction of lockstep, and milliseconds to first token and between tokens after the first
    wave."""
    later = sorted(outcomes, key=lambda outcome: outcome.sent)[load.clients :]
    first = [outcome.ttft * 1e3 for outcome in later if outcome.ttft is not None]
    gaps = [gap * 1e3 for outcome in later for gap in outcome.gaps]
    seconds = max(outcome.ended for outcome in outcomes)
    return {
        "of_lockstep": sum(outcome.tokens for outcome in outcomes) / seconds / lockstep_tok_s(load),
        "ttft_p50": measure.percentile(first, 50) or 0.0,
        "ttft_p95": measure.percentile(first, 95) or 0.0,
        "itl_p50": measure.percentile(gaps, 50) or 0.0,
        "itl_p95": measure.percentile(gaps, 95) or 0.0,
    }


def _engine(seed: int, jitter: float) -> tuple[InProcess, TimedModel]:
    vocabulary = ToyTokenizer()
    model = TimedModel(vocabulary.size, seed, jitter)
    return InProcess(model, vocabulary, clock=lambda: model.now), model


def simulated(options: argparse.Namespace) -> dict[str, Any]:
    """Simulate and print each load; return all figures."""
    found: dict[str, Any] = {}
    print(f"{'clients':>7}{'seed':>6}{'of lockstep':>13}{'TTFT p50':>10}{'p95':>9}{'ITL p50':>9}{'p95':>9}  ms")
    for clients in options.clients:
        load = Load(clients, options.prompt, options.out, max(2, options.requests // clients), options.think / 1e3)
        for seed in range(options.seeds):
            got = figures(load, simulate(load, seed, options.jitter))
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
    print("TTFT of a prompt of 64 tokens behind prompts of 4,000, without streams and beside 4 streams")
    for num_long in options.behind:
        seconds = [ttft_behind_prompts(num_long, streams) for streams in (0, 4)]
        found[f"behind {num_long}"] = seconds
        print(f"{num_long:>7}" + "".join(f"{each * 1e3:10.0f}" for each in seconds) + "  ms", flush=True)
    return found


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("simulate", __doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64])
    parser.add_argument(
        "--behind",
        type=int,
        nargs="*",
        default=[0, 1, 4, 12],
        help="numbers of long prompts before a short one (default 0 1 4 12)",
    )
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt (default 128)")
    parser.add_argument("--out", type=int, default=64, help="tokens per completion (default 64)")
    parser.add_argument("--requests", type=int, default=400, help="approximate requests per load (default 400)")
    parser.add_argument("--think", type=float, default=6.0, help="ms from a response to the next request (default 6)")
    parser.add_argument(
        "--jitter", "--unsteady", type=float, default=1.0, help="0 to 1: how much step durations vary (default 1)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs of each load (default 3)")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    report(simulated(options))


if __name__ == "__main__":
    measure.run(arguments(), main)
