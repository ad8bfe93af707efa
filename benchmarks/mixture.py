"""A mixture of experts, or a hybrid, in Onward's runtime and in llama.cpp, on the same file, in alternation.

`python -m benchmarks.mixture FILE.gguf --shape NAME --llama-server /path/of/llama-server` writes FILE with random
weights in the shape of a published model with some of its layers, if it is not there yet, and measures decoding with
several rows, and prefilling: tokens per second of the bare loop and of llama-batched-bench, and their ratio within each
round. Tokens are random, so that rows use different experts. `benchmarks.shapes` has the shapes: Qwen3-30B-A3B (3.6 GB
with eight layers), gpt-oss-20b (5.4 GB), Qwen 3.5 0.8B and 35B-A3B, Granite 4 H micro and tiny, and
DeepSeek-V2-Lite (3.5 GB with nine layers).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measure
from benchmarks.bare import random_prompts
from benchmarks.models import load
from benchmarks.peer_build import BATCHED_BENCH, find
from benchmarks.shapes import SHAPES, write
from onward.engine.model import ModelRunner, Row
from onward.machine import compute_threads


def of_onward(model: ModelRunner, rows: int, prompt: int, out: int, seed: int) -> tuple[float, float]:
    """Return tokens per second of prefilling and of decoding, of so many sequences with random tokens."""
    prompts = random_prompts(model.vocab_size, rows, prompt, seed)
    following = random_prompts(model.vocab_size, rows, out, seed + 1)
    table, chunk = model.shape.blocks_for(prompt + out), model.shape.max_prefill_tokens

    def row(each: int, tokens: list[int], at: int, outputs: int) -> Row:
        return Row(each, tokens, at, range(each * table, (each + 1) * table), outputs, state=each)

    begin = time.perf_counter()
    for each in range(rows):
        for at in range(0, prompt, chunk):
            model.evaluate([row(each, prompts[each][at : at + chunk], at, int(at + chunk >= prompt))])
    prefilled = time.perf_counter()
    for at in range(out):
        model.evaluate([row(each, [following[each][at]], prompt + at, 1) for each in range(rows)])
    done = time.perf_counter()
    return rows * prompt / (prefilled - begin), rows * out / (done - prefilled)


def of_llama(
    program: Path, file: Path, threads: int, rows: int, prompt: int, out: int, flags: Sequence[str] = ()
) -> tuple[float, float]:
    """Return the same rates from llama-batched-bench, with its best settings for CPUs. `flags`: others of its own."""
    command = [
        str(program), "-m", str(file), "-c", str(rows * (prompt + out) + 512), "-b", "2048", "-ub", "512",
        "-npp", str(prompt), "-ntg", str(out), "-npl", str(rows), "-t", str(threads),
        "--output-format", "jsonl", *flags,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("{")))
    return found["speed_pp"], found["speed_tg"]


def figures_of(rounds: list[tuple[tuple[float, float], tuple[float, float]]]) -> dict[str, dict[str, float]]:
    """Return tokens per second of both, and their ratio within each round."""
    found = {}
    for index, what in enumerate(("prefill", "decode")):
        pairs = [(own[index], theirs[index]) for own, theirs in rounds]
        found[f"{what} onward"] = measure.median_of([own for own, _ in pairs])
        found[f"{what} llama.cpp"] = measure.median_of([theirs for _, theirs in pairs])
        found[f"{what} ratio"] = measure.median_of([own / theirs for own, theirs in pairs])
    return found


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("mixture", __doc__)
    parser.add_argument("file", type=Path, metavar="FILE.gguf")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-30b", help="of the file, if it is written")
    parser.add_argument("--layers", type=int, help="of the file, if it is written; default: some of the model's")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--out", type=int, default=32, help="tokens per row (default 32)")
    parser.add_argument(
        "--threads", type=int, default=compute_threads(), help="of both (default: one per core; 1 where others compute)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, after a warm-up round (default 3)")
    parser.add_argument("--llama-server", type=Path, help="default: the one on PATH, else built into .peers")
    parser.add_argument("--llama-flags", default="", help="others of llama-batched-bench's, as one text: '-fa off'")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    program = find(BATCHED_BENCH, options.llama_server)
    if not options.file.exists():
        write(options.file, SHAPES[options.shape], options.layers)
    model, _ = load(str(options.file), threads=options.threads)
    figures = {}
    for rows in options.rows:
        sizes = rows, options.prompt if rows == 1 else 64, options.out
        rounds = []
        for number in range(options.rounds + 1):
            own = of_onward(model, *sizes, seed=1000 * rows + 2 * number)
            rounds.append((own, of_llama(program, options.file, options.threads, *sizes, options.llama_flags.split())))
        figures[str(rows)] = found = figures_of(rounds[1:])
        words = " · ".join(f"{name} {each['median']:.2f}" for name, each in found.items())
        print(f"{rows:>3} rows: {words}", flush=True)
    report(figures)


if __name__ == "__main__":
    measure.run(arguments(), main)
