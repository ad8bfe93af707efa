"""Throughput of the engine and the server as fractions of the bare loop, in alternating rounds of one run.

Arms: the bare loop and the engine in this process; `onward serve` over HTTP with the client in this process. In each
round every arm does the same work with each number of clients, interleaved in turns of two seconds. The server's round
is split into turns only with one client, between two requests: a load of several clients cannot be paused, and is one
turn. Where the time of a token goes is measured along with it: time of the engine's thread by part, processor time of
the others by process. `python -m benchmarks.engine --rounds 7`.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from benchmarks import measure
from benchmarks.bare import BareLoop, BareRun, random_prompts
from benchmarks.http_client import Target
from benchmarks.in_process import InProcess
from benchmarks.interleave import Stepwise, TurnClock, interleave
from benchmarks.load import Bounds, LoadGenerator, RawResult, event_loop_runner
from benchmarks.measure import BenchmarkError
from benchmarks.models import find_model, load
from benchmarks.outcome import Outcome, steady_tok_s, summarise
from benchmarks.processes import cpu_by_process, resident_memory
from benchmarks.server_process import Server, serve
from benchmarks.workload import Workload
from onward.engine.model import ModelRunner
from onward.models.resolve import ResolvedModel
from onward.sampling.sampler import Sampler

BARE, ENGINE, SERVER = "bare", "engine", "server"
MODEL, SAMPLING, SCHEDULING = "model", "sampling", "scheduling"


@dataclass(slots=True)
class Round:
    """One arm in one round, rates in tokens per second.

    `tok_s` counts all output, `decode_tok_s` full decode steps alone (None if steps are not visible), `steady_tok_s`
    output while all clients had work (None if unknown). `parts`: where the time goes, in microseconds per token.
    """

    tok_s: float
    decode_tok_s: float | None
    outcomes: list[Outcome] = field(default_factory=list)
    steady_tok_s: float | None = None
    parts: dict[str, float] = field(default_factory=dict)


class PartClock:
    """Seconds spent in calls, by part of a step."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def timed(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call with its time counted."""

        def run(*arguments: Any) -> Any:
            begin = time.perf_counter()
            result = call(*arguments)
            self.seconds[part] += time.perf_counter() - begin  # type: ignore[assignment]
            return result

        return run


class TimedModel:
    """A model whose steps are counted; everything else is the model's. Another arm uses the same model."""

    def __init__(self, model: ModelRunner, clock: PartClock) -> None:
        self._model = model
        self.evaluate = clock.timed(MODEL, model.evaluate)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class Arms:
    """The arms, for one model and one server. Prompts are new in every round, so that no prefix cache helps."""

    def __init__(self, options: argparse.Namespace, server: Server) -> None:
        model, folder = load(options.model)
        self._options = options
        self._vocab_size = model.vocab_size
        self._bare = BareLoop(model, options.prompt + options.out)
        self._engine_clock, self._server_clock = TurnClock(), TurnClock()
        self._parts = PartClock()
        self._engine = self._timed_engine(model, folder)
        self._target, self._pid = Target.parse(server.url), server.pid
        self.folder = folder
        self._seed = 0
        self._rounds = itertools.count()
        gc.freeze()  # as the server does after loading

    def _timed_engine(self, model: ModelRunner, found: ResolvedModel) -> InProcess:
        timed = cast(ModelRunner, TimedModel(model, self._parts))
        sampler = Sampler(model.vocab_size)
        vars(sampler)["sample"] = self._parts.timed(SAMPLING, sampler.sample)
        engine = InProcess(timed, found.files.load_tokenizer(), clock=self._engine_clock, sampler=sampler)
        scheduler = engine.engine.scheduler
        vars(scheduler)["schedule"] = self._parts.timed(SCHEDULING, scheduler.schedule)
        return engine

    def round(self, clients: int, waves: int) -> dict[str, Round]:
        """Run one round of every arm with `waves` requests per client; a different arm is first each time."""
        computations = {BARE: (self._bare_round(clients, waves), TurnClock())}
        computations[ENGINE] = (self._engine_round(clients, waves), self._engine_clock)
        load = self._load(clients * waves)  # created before its clock starts
        computations[SERVER] = (self._server_round(load, clients, clients * waves), self._server_clock)
        names = list(computations)
        first = next(self._rounds) % len(names)
        results = interleave({name: computations[name] for name in names[first:] + names[:first]})
        return {name: results[name] for name in names}

    def _prompts(self, count: int) -> list[list[int]]:
        self._seed += 1
        return random_prompts(self._vocab_size, count, self._options.prompt, self._seed)

    def _bare_round(self, clients: int, waves: int) -> Stepwise[Round]:
        runs: list[BareRun] = []
        for _ in range(waves):
            runs.append((yield from self._bare.run_stepwise(self._prompts(clients), self._options.out)))
        tokens, seconds = sum(run.output_tokens for run in runs), sum(run.seconds for run in runs)
        steps, parts = [step for run in runs for step in run.steps], {MODEL: seconds / tokens * 1e6}
        return Round(tokens / seconds, _decode_rate(clients, steps), steady_tok_s=tokens / seconds, parts=parts)

    def _engine_round(self, clients: int, waves: int) -> Stepwise[Round]:
        self._parts.seconds.clear()
        run = yield from self._engine.run_stepwise(self._prompts(clients * waves), self._options.out, clients)
        figures = summarise(run.outcomes)
        tok_s, decode_tok_s = figures["output_tok_s"], _decode_rate(clients, run.full_steps)
        parts = {name: each / figures["output_tokens"] * 1e6 for name, each in self._parts.seconds.items()}
        parts["the rest"] = 1e6 / tok_s - sum(parts.values())
        return Round(tok_s, decode_tok_s, run.outcomes, _steady_rate(clients, run.outcomes, tok_s), parts)

    def _load(self, requests: int) -> LoadGenerator:
        self._seed += 1
        workload = Workload(
            self.folder.id,
            prompt=self._options.prompt,
            tokens=(min(256, self._vocab_size - 1), self._vocab_size),
            out=self._options.out,
            seed=self._seed,
        )
        return LoadGenerator(self._target, workload, Bounds(requests))

    def _server_round(self, load: LoadGenerator, clients: int, requests: int) -> Stepwise[Round]:
        """Run the server's round. With one client each request is a step, with several all requests are one step."""
        clock, step = self._server_clock, 1 if clients == 1 else requests
        sent: list[RawResult] = []
        used, own = cpu_by_process(self._pid), 0.0
        with event_loop_runner() as loop:
            begin = clock()
            for first in range(0, requests, step):
                own_begin = time.process_time()
                sent += loop.run(load.send(range(first, first + step), clients))
                own += time.process_time() - own_begin
                yield
            seconds = clock() - begin
            outcomes = load.finish(sent)
        figures = summarise(outcomes)
        if figures["failed"]:
            raise BenchmarkError(f"requests failed: {figures['failed']}")
        tok_s = figures["output_tokens"] / seconds
        parts = {"client": own / figures["output_tokens"] * 1e6}
        if used:
            server, *engine = (now - then for now, then in zip(cpu_by_process(self._pid), used, strict=True))
            parts |= {
                "server": server / figures["output_tokens"] * 1e6,
                "engine": sum(engine) / figures["output_tokens"] * 1e6,
            }
        return Round(tok_s, None, outcomes, _steady_rate(clients, outcomes, tok_s), parts)


def _decode_rate(rows: int, steps: list[float]) -> float | None:
    """Return tokens per second at the median step; None if no step was a full decode."""
    median = measure.percentile(steps, 50)
    return rows / median if median else None


def _steady_rate(clients: int, outcomes: list[Outcome], tok_s: float) -> float | None:
    """Return output tokens per second while all clients had work. A single client always has work, and other arms'
    turns may be between its requests."""
    return steady_tok_s(outcomes, clients) if clients > 1 else tok_s


def compare(rounds: list[dict[str, Round]]) -> dict[str, Any]:
    """Return for each arm tokens per second, ratios to the bare loop of the same round, and latencies of all rounds."""
    figures: dict[str, Any] = defaultdict(dict)
    for name in rounds[0]:
        found = figures[name]
        found["tok_s"] = measure.median_of([each[name].tok_s for each in rounds])
        found["of_bare"] = measure.median_of([each[name].tok_s / each[BARE].tok_s for each in rounds])
        steady = [mine / each[BARE].tok_s for each in rounds if (mine := each[name].steady_tok_s)]
        if steady:
            found["steady_of_bare"] = measure.median_of(steady)
        steps = [
            (mine, bare) for each in rounds if (mine := each[name].decode_tok_s) and (bare := each[BARE].decode_tok_s)
        ]
        if steps:
            found["decode_tok_s"] = measure.median_of([mine for mine, _ in steps])
            found["decode_of_bare"] = measure.median_of([mine / bare for mine, bare in steps])
        found["parts_us"] = {
            part: statistics.median(each[name].parts[part] for each in rounds) for part in rounds[0][name].parts
        }
        outcomes = [outcome for each in rounds for outcome in each[name].outcomes]
        if outcomes:
            summary = summarise(outcomes)
            found |= {key: summary[key] for key in ("ttft_ms", "itl_ms", "e2e_ms", "chunks", "output_tokens")}
    return dict(figures)


def memory(server: Server, model: ResolvedModel) -> dict[str, Any] | None:
    """Return the server's resident memory in bytes, with what is neither weights nor KV cache; None where unknown."""
    found = resident_memory(server.pid)
    if found is None:
        return None
    weights = model.size_bytes
    return {
        **found,
        "weights": weights,
        "above_weights_and_kv": found["anonymous"] + found["file"] - weights,
    }


def waves_for(clients: int) -> int:
    """Return requests per client and round: rounds of similar length for every number of clients."""
    return max(4, 16 // clients)


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table for the terminal."""
    lines = [
        f"{'clients':>7} {'arm':14}{'tok/s':>10}{'of bare':>9}{'steady':>9}{'decode':>9}"
        f"{'TTFT p50':>10}{'p95':>9}{'ITL p50':>9}{'p95':>9}  ms"
    ]
    for clients, arms in figures.items():
        for name, found in arms.items():
            cells = [f"{found['tok_s']['median']:10.1f}{found['of_bare']['median']:9.1%}"]
            for key in ("steady_of_bare", "decode_of_bare"):
                cells.append(f"{found[key]['median']:9.1%}" if key in found else " " * 9)
            if "ttft_ms" in found:
                ttft, itl = found["ttft_ms"], found["itl_ms"]
                cells.append(f"{ttft['p50']:10.2f}{ttft['p95']:9.2f}{itl['p50']:9.2f}{itl['p95']:9.2f}")
            lines.append(f"{clients:>7} {name:14}" + "".join(cells))
    lines.append("microseconds per token: of the engine's thread, and of each process's processors")
    for clients, arms in figures.items():
        for name, found in arms.items():
            parts = (f"{part} {microseconds:.0f}" for part, microseconds in found["parts_us"].items())
            lines.append(f"{clients:>7} {name:14}{', '.join(parts)}")
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("engine", __doc__)
    parser.add_argument("--model", default="storyteller", help="a built-in name or a folder")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt (default 128)")
    parser.add_argument("--out", type=int, default=64, help="tokens per completion (default 64)")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds (default 7)")
    parser.add_argument(
        "--waves",
        type=int,
        nargs="+",
        help="requests per client and round: one number, or one for each of --clients (default: depends on it)",
    )
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    waves = options.waves or [waves_for(clients) for clients in options.clients]
    if len(waves) not in (1, len(options.clients)):
        raise BenchmarkError(f"--waves takes 1 or {len(options.clients)} numbers, as many as --clients")
    find_model(options.model)  # fails before a server starts
    figures: dict[str, Any] = {}
    with serve(options.model) as server:
        arms = Arms(options, server)
        for clients, size in zip(options.clients, itertools.cycle(waves)):  # a single number applies to all
            arms.round(clients, measure.warmup_size(size))
            figures[str(clients)] = compare([arms.round(clients, size) for _ in range(options.rounds)])
        held = memory(server, arms.folder)
    print(table(figures))
    if held:
        print(f"server: {held['above_weights_and_kv'] / 2**20:.0f} MiB above weights and KV cache in use")
    report({"clients": figures, "memory": held})


if __name__ == "__main__":
    measure.run(arguments(), main)
