"""Onward's server and llama.cpp's llama-server on the same weights, in alternating rounds of one run.

Each is a separate process; both keep running, but only one at a time has work. Every ratio is taken within one round.
`python -m benchmarks.compare storyteller`; `benchmarks.random_model` creates the others.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.arms import ONWARD, PEER, TOP_K, Arm, Comparison, Shape, sampling_fields
from benchmarks.engine import Round
from benchmarks.families import MODELS, Family, families, family_of, select
from benchmarks.llama_server import serve_peer, version
from benchmarks.models import model_id
from benchmarks.outcome import summarise
from benchmarks.peer_build import SERVER, find
from benchmarks.peer_tuning import Tuned, tune, untuned
from benchmarks.processes import resident_memory
from benchmarks.server_process import serve

LATENCIES = {f"{key}_p{percent}": (f"{key}_ms", f"p{percent}") for key in ("ttft", "itl") for percent in (50, 95)}


def start(family: Family, program: Path, tuned: dict[str, Tuned], extra: list[str], stack: ExitStack) -> list[Arm]:
    """Start a server for every precision; return their arms, with top_k."""
    onward = [
        Arm(ONWARD, precision, stack.enter_context(serve(str(file))), model_id(str(file)), TOP_K)
        for precision, file in family.files.items()
    ]
    peers = {
        precision: stack.enter_context(serve_peer(program, gguf, tuned[precision].slots, extra))
        for precision, gguf in family.files.items()
    }
    return onward + [Arm(PEER, precision, server, "peer", TOP_K) for precision, server in peers.items()]


def without_top_k(arm: Arm) -> Arm:
    """Return the same arm without top_k."""
    return Arm(arm.system, arm.precision, arm.server, arm.model, 0)


def compare(rounds: list[dict[str, Round]]) -> dict[str, Any]:
    """Return tokens per second and latencies of each arm, and ratios within a round of each arm of Onward to each arm
    of the peer with the same sampling."""
    per_round = [{name: summarise(each.outcomes) for name, each in done.items()} for done in rounds]
    arms = {name: arm_figures([done[name] for done in rounds]) for name in sorted(rounds[0])}
    ratios: dict[str, dict[str, Any]] = {}
    for mine, peer in itertools.product(arms, arms):
        is_comparable = ("top_k off" in mine) == ("top_k off" in peer)
        if mine.startswith(ONWARD) and peer.startswith(PEER) and is_comparable:
            ratios.setdefault(mine, {})[peer] = ratio_figures([(done[mine], done[peer]) for done in per_round])
    return {"arms": arms, "ratios": ratios}


def arm_figures(rounds: list[Round]) -> dict[str, Any]:
    """Return tokens per second (median and range of rounds) and latencies (of all rounds) of one arm."""
    summary = summarise([outcome for each in rounds for outcome in each.outcomes])
    kept = {key: summary[key] for key in ("ttft_ms", "itl_ms", "e2e_ms", "requests", "output_tokens", "chunks")}
    return {"tok_s": measure.median_of([each.tok_s for each in rounds]), **kept}


def ratio_figures(rounds: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Return the ratios of pairs of summaries, first to second."""
    found = {"tok_s": measure.median_of([mine["output_tok_s"] / peer["output_tok_s"] for mine, peer in rounds])}
    for name, (key, column) in LATENCIES.items():
        values = [(mine[key][column], peer[key][column]) for mine, peer in rounds]
        if all(mine is not None and peer for mine, peer in values):
            found[name] = measure.median_of([mine / peer for mine, peer in values])
    return found


def compare_family(family: Family, options: argparse.Namespace, program: Path, seeds: Iterator[int]) -> dict[str, Any]:
    """Compare with every number of clients, each with servers started for it."""
    shape = Shape(options.shared + options.prompt, options.out, (256, family.vocabulary), options.shared)
    extra, done = [*family.peer_flags, *options.peer_flags], {}
    for clients in options.clients or family.clients:
        tuned = {
            name: untuned(clients, shape) if options.untuned else tune(program, gguf, clients, shape, extra, seeds)
            for name, gguf in family.files.items()
        }
        with ExitStack() as stack:
            arms = start(family, program, tuned, extra, stack)
            comparison = Comparison(shape, clients, [arm.server for arm in arms], seeds)
            if clients in options.top_k_off:
                arms += [without_top_k(arm) for arm in arms]
            runs = {arm.name: _runner(comparison, arm) for arm in arms}
            waves = options.waves or family.waves_for(clients)
            found = compare(alternate(runs, options.rounds or family.rounds, waves))
            found["memory"] = {f"{arm.system} {arm.precision}": resident_memory(arm.server.pid) for arm in arms}
        found["idle_cpu"] = statistics.fmean(comparison.idle_cpu)
        found["peer_settings"] = {name: each.report(extra) for name, each in tuned.items()}
        done[str(clients)] = found
        print(table(family.name, clients, found), flush=True)
    return done


def alternate(arms: dict[str, Callable[[int], Round]], rounds: int, waves: int) -> list[dict[str, Round]]:
    """Run every arm once per round, a different one first each time; discard a shorter warm-up round before them."""
    names = list(arms)
    done = []
    for number in range(rounds + 1):
        first = number % len(names)
        size = waves if number else measure.warmup_size(waves)
        done.append({name: arms[name](size) for name in names[first:] + names[:first]})
    return done[1:]


def _runner(comparison: Comparison, arm: Arm) -> Callable[[int], Round]:
    return lambda waves: comparison.run(arm, waves)


def table(family: str, clients: int, found: dict[str, Any]) -> str:
    """Return a table for the terminal: the arms, then the ratios."""
    lines = [f"{family}, {clients} clients{'output tok/s':>20}{'TTFT p50':>10}{'p95':>9}{'ITL p50':>9}{'p95':>9}  ms"]
    lines += [f"  {PEER} {name}: {each['chosen']}" for name, each in found["peer_settings"].items()]
    for name, memory in found["memory"].items():
        if memory:
            resident = memory["anonymous"] + memory["file"] + memory["kv"]
            lines.append(f"  {name}: {resident / 1e6:,.0f} MB resident, {memory['peak'] / 1e6:,.0f} at the peak")
    for name, arm in found["arms"].items():
        cells = [arm[key][column] or 0.0 for key, column in LATENCIES.values()]
        numbers = f"{cells[0]:10.1f}{cells[1]:9.1f}{cells[2]:9.2f}{cells[3]:9.2f}"
        lines.append(f"  {name:32}{arm['tok_s']['median']:8.1f}{numbers}")
    for mine, peers in found["ratios"].items():
        for peer, ratio in peers.items():
            ratios = (f"{ratio[key]['median']:.2f}× {key}" for key in ("tok_s", *LATENCIES) if key in ratio)
            lines.append(f"  {mine} / {peer}: {', '.join(ratios)}")
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    known = families()
    parser = measure.parser("compare", __doc__)
    parser.add_argument("families", nargs="*", default=[*known], help=f"{', '.join(known)} (default: all)")
    parser.add_argument("--model", type=Path, metavar="FILE.gguf", help="compare on this file instead, as it is")
    parser.add_argument(
        "--models", type=Path, default=MODELS, help="folder of those that benchmarks.random_model created"
    )
    parser.add_argument("--llama-server", type=Path, help="default: the one on PATH, else built into .peers")
    parser.add_argument("--precisions", nargs="+", help="only these types of weights: Q8_0, Q4_0")
    parser.add_argument("--clients", type=int, nargs="+", help="default: 1 8 32, and 64 for storyteller")
    parser.add_argument("--prompt", type=int, default=128, help="tokens per prompt (default 128)")
    parser.add_argument("--out", type=int, default=64, help="tokens per completion (default 64)")
    parser.add_argument(
        "--shared", type=int, default=0, metavar="TOKENS", help="begin all prompts of a round with the same tokens too"
    )
    parser.add_argument("--rounds", type=int, help="measured rounds (default: depends on the model)")
    parser.add_argument("--waves", type=int, help="requests per client and round (default: depends on the model)")
    parser.add_argument(
        "--top-k-off",
        type=int,
        nargs="*",
        default=[8],
        help="numbers of clients with which to compare without top_k too (default 8)",
    )
    parser.add_argument(
        "--untuned", action="store_true", help="one thread per core and a cache per slot, instead of the fastest tried"
    )
    parser.add_argument("--peer-flags", type=shlex.split, default=[], help="more flags for llama-server, as one string")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    if unknown := set(options.families) - set(families()):
        raise measure.BenchmarkError(f"unknown family: {', '.join(unknown)} (choose from {', '.join(families())})")
    seeds = itertools.count(1)
    chosen = [family_of(options.model)] if options.model else select(options.families, options.models)
    wanted = [family.only(options.precisions) for family in chosen]
    program = find(SERVER, options.llama_server)
    figures = {family.name: compare_family(family, options, program, seeds) for family in wanted}
    requests = {system: sampling_fields(system, TOP_K) for system in (ONWARD, PEER)}
    report({"families": figures, "peer": version(program), "requests": requests})


if __name__ == "__main__":
    measure.run(arguments(), main)
