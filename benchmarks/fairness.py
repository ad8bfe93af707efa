"""How long a small request of one client waits for its first token, whatever another client sends.

`python -m benchmarks.fairness` runs the real engine in virtual time, with the step durations of `benchmarks.simulate`.
The small request arrives at the worst moment, when a step has just begun. Its time to the first token shall be at most
twice that on an idle engine, plus the step that was running and the logits of the rows that decode in its own; exits
with status 1 if it is longer.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks import measure
from benchmarks.in_process import InProcess
from benchmarks.simulate import ROW_MS, TimedModel
from onward.model_files.toy import ToyTokenizer

BUSY, SMALL = 1, 2
"""Numbers of the two clients."""
SMALL_TOKENS = 64
"""Prompt of the small request."""
ARRIVALS = (1, 2, 5, 20, 60, 150)
"""Steps after which the small request arrives, each in a run of its own: the worst one counts."""


class Simulation:
    """An engine in virtual time, with random prompts. It has completed a request: the first decode-only step of an
    engine takes place before prompts are computed beside it, so that its duration is known."""

    def __init__(self, max_rows: int = 64) -> None:
        vocabulary = ToyTokenizer()
        self.model = TimedModel(vocabulary.size)
        self.engine = InProcess(self.model, vocabulary, clock=lambda: self.model.now, max_rows=max_rows)
        self.submit(SMALL_TOKENS, 2, client=SMALL)
        while not self.engine.engine.idle:
            self.engine.step()

    def submit(self, num_tokens: int, out: int, *, choices: int = 1, request: int | None = None, client: int) -> int:
        """Submit a random prompt; return the job's number."""
        prompt = self.model.random.integers(0, self.model.vocab_size, num_tokens).tolist()
        return self.engine.submit(prompt, out, choices=choices, request=request, client=client)


Load = Callable[[Simulation], None]


def streams(count: int, *, prompt: int = 128, out: int = 4000) -> Load:
    """Return a load of many requests."""

    def submit(simulation: Simulation) -> None:
        for _ in range(count):
            simulation.submit(prompt, out, client=BUSY)

    return submit


def candidates(count: int) -> Load:
    """Return a load of requests for 128 candidates each."""

    def submit(simulation: Simulation) -> None:
        for _ in range(count):
            simulation.submit(128, 1000, choices=128, client=BUSY)

    return submit


def batch(num_prompts: int) -> Load:
    """Return a load of one request with many prompts."""

    def submit(simulation: Simulation) -> None:
        for _ in range(num_prompts):
            simulation.submit(64, 200, request=-1, client=BUSY)

    return submit


LOADS: dict[str, Load] = {
    **{f"{count} streams": streams(count) for count in (1, 4, 16, 64, 256)},
    **{f"{count} prompts of 4,000 tokens": streams(count, prompt=4000, out=64) for count in (1, 4, 16, 64)},
    **{f"{count} × n=128": candidates(count) for count in (1, 9)},
    "2,048 prompts in one request": batch(2048),
}


@dataclass(frozen=True, slots=True)
class Delay:
    """Seconds to the first token of the small request, of the step that was running when it arrived, and of the logits
    of the rows that decode in its own step."""

    ttft: float
    running_step: float
    logits: float

    def bound(self, alone: float) -> float:
        """Return the seconds that the first token may take."""
        return 2 * alone + self.running_step + self.logits

    def excess(self, alone: float) -> float:
        """Seconds above the bound, negative within it."""
        return self.ttft - self.bound(alone)


def delay(load: Load | None, arrival: int) -> Delay:
    """Return the delay of a small request that arrives right after the beginning of step number `arrival` of a load."""
    simulation = Simulation()
    begin = simulation.model.now
    if load is not None:
        load(simulation)
        for _ in range(arrival):
            if simulation.engine.engine.idle:
                break
            begin = simulation.model.now
            simulation.engine.step()
    running_step = simulation.model.now - begin
    num_decoding = sum(not sequence.is_prefilling for sequence in simulation.engine.engine.scheduler.running)
    number = simulation.submit(SMALL_TOKENS, 2, client=SMALL)
    while not simulation.engine.has_first_token(number):
        simulation.engine.step()
    return Delay(simulation.model.now - begin, running_step, num_decoding * ROW_MS / 1e3)


def worst_delay(load: Load, alone: float, arrivals: Iterable[int] = ARRIVALS) -> Delay:
    """Return the delay that exceeds its bound most."""
    return max((delay(load, arrival) for arrival in arrivals), key=lambda found: found.excess(alone))


def simulated() -> dict[str, Any]:
    """Simulate and print each load; return all figures, in milliseconds."""
    alone = delay(None, 0).ttft
    found: dict[str, Any] = {"alone": alone * 1e3}
    print(f"A prompt of {SMALL_TOKENS} tokens on an idle engine has its first token after {alone * 1e3:.0f} ms.")
    print(f"{'beside, of another client':32}{'first token':>12}{'running step':>14}{'bound':>8}  ms")
    for name, load in LOADS.items():
        worst = worst_delay(load, alone)
        bound = worst.bound(alone)
        found[name] = {"ttft": worst.ttft * 1e3, "running_step": worst.running_step * 1e3, "bound": bound * 1e3}
        print(f"{name:32}{worst.ttft * 1e3:12.0f}{worst.running_step * 1e3:14.0f}{bound * 1e3:8.0f}", flush=True)
    return found


def main(_: argparse.Namespace, report: measure.Report) -> int:
    figures = simulated()
    report(figures)
    late = [name for name, found in figures.items() if name != "alone" and found["ttft"] > found["bound"]]
    for name in late:
        print(f"FAILED beside {name}: later than the bound")
    return 1 if late else 0


if __name__ == "__main__":
    measure.run(measure.parser("fairness", __doc__), main)
