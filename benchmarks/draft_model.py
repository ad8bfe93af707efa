"""What a draft model saves one client: the engine with it and without it, in alternating turns of one run.

`python -m benchmarks.draft_model MODEL --draft DRAFT`. Prose and code are continued, greedily and sampled; every ratio
is taken within one text, prefill included. Fails if a token differs. Where no smaller model with the same tokens is
available, the model itself stands in: another quantisation of it, or, with `--precision exact` for the model alone, the
same file, which then drafts faster and nearly as well. `--draft mtp`: with the layers of the model that predict several
tokens.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks import measure
from benchmarks.edits import CODE, PROSE
from benchmarks.measure import BenchmarkError
from benchmarks.models import find_model
from onward.compose.drafts import PREDICTOR
from onward.engine.events import Decoded
from onward.engine.job import Job
from onward.engine.model import ModelRunner, Tokenizer
from onward.engine.step import Engine
from onward.model_files.vocabulary import difference
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from onward.sampling.params import SamplingParams
from onward.sampling.sampler import Sampler
from onward.text.assembler import TextRules

TEMPERATURES = (0.0, 0.8)
WARM_UP = 1
"""Rounds before those that count: the engine finds out what steps cost."""


@dataclass(frozen=True, slots=True)
class Done:
    """One completion: its tokens, the seconds until the last, those of the process, and those of the draft model."""

    tokens: list[int]
    seconds: float
    cpu_seconds: float
    draft_seconds: float
    accepted: int
    rejected: int
    steps: int


class Arm:
    """An engine, kept from text to text as in a server. Prefixes are not shared: every round has the same prompts."""

    def __init__(self, model: ModelRunner, tokenizer: Tokenizer, draft: ModelRunner | None) -> None:
        sampler = Sampler(model.vocab_size)
        self._engine = Engine(model, tokenizer, sampler, share_prefixes=False, draft_model=draft)
        self._number = 0

    def run(self, prompt: list[int], out: int, temperature: float) -> Done:
        """Complete a prompt with `out` tokens."""
        engine, self._number = self._engine, self._number + 1
        before = engine.load()
        began, cpu_began = time.perf_counter(), time.process_time()
        sampling = SamplingParams(temperature=temperature, seed=7)
        engine.add(
            Job(
                id=self._number, request=self._number, prompt=tuple(prompt), num_choices=1, max_tokens=out,
                sampling=sampling, rules=TextRules(), end_tokens=frozenset(),
            )
        )  # fmt: skip
        tokens: list[int] = []
        while not engine.idle:
            events = [event for event in engine.step() if isinstance(event, Decoded)]
            tokens += [each.token for event in events for each in event.tokens]
        seconds, cpu_seconds, after = time.perf_counter() - began, time.process_time() - cpu_began, engine.load()
        return Done(
            tokens, seconds, cpu_seconds, after.draft_seconds - before.draft_seconds,
            after.drafts.model_accepted - before.drafts.model_accepted,
            after.drafts.model_rejected - before.drafts.model_rejected, after.num_steps - before.num_steps,
        )  # fmt: skip

    def close(self) -> None:
        self._engine.close()


def compare(arms: dict[str, Arm], prompt: list[int], out: int, temperature: float, rounds: int) -> dict[str, Any]:
    """Return the figures of one text. Raises BenchmarkError if the arms' tokens differ."""
    ratios: list[float] = []
    cpu_ratios: list[float] = []
    drafted: list[Done] = []
    for number in range(WARM_UP + rounds):
        order = list(arms) if number % 2 else list(arms)[::-1]
        done = {name: arms[name].run(prompt, out, temperature) for name in order}
        if done["with"].tokens != done["without"].tokens:
            raise BenchmarkError("the draft model changed a token")
        if number >= WARM_UP:
            ratios.append(done["without"].seconds / done["with"].seconds)
            cpu_ratios.append(done["without"].cpu_seconds / done["with"].cpu_seconds)
            drafted.append(done["with"])
    accepted, rejected = (sum(getattr(each, name) for each in drafted) for name in ("accepted", "rejected"))
    return {
        "ratio": measure.median_of(ratios),
        "cpu_ratio": measure.median_of(cpu_ratios),
        "accepted_fraction": accepted / (accepted + rejected) if accepted + rejected else None,
        "tokens_per_step": len(drafted) * out / sum(each.steps for each in drafted),
        "draft_fraction": sum(each.draft_seconds for each in drafted) / sum(each.seconds for each in drafted),
    }


def texts(tokenizer: Tokenizer, length: int, count: int) -> Iterator[tuple[str, list[int]]]:
    """Yield overlapping passages of this many tokens of prose and of code."""
    for kind, text in (("prose", PROSE), ("code", CODE)):
        ids = tokenizer.encode(text, add_special_tokens=False)
        stride = max(1, (len(ids) - length) // count)
        for number in range(count):
            yield kind, ids[number * stride : number * stride + length]


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("draft_model", __doc__)
    parser.add_argument("model", help="a built-in name, a folder or a file")
    parser.add_argument("--draft", required=True, help="the model that drafts for it; mtp: its own layers")
    parser.add_argument("--precision", choices=("fast", "exact"), default="fast", help="of the model (default fast)")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt (default 64)")
    parser.add_argument("--out", type=int, default=128, help="tokens of each completion (default 128)")
    parser.add_argument("--texts", type=int, default=4, help="texts of each kind (default 4)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each text (default 3)")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    has_predictor = options.draft == PREDICTOR
    found = find_model(options.model)
    small = found if has_predictor else find_model(options.draft)
    wanted = RuntimeOptions(precision=options.precision)
    plain = load_model(found.files, wanted, lambda line: None).model
    other = load_model(found.files, replace(wanted, has_predictor=has_predictor), lambda line: None)
    tokenizer = found.files.load_tokenizer()
    if problem := difference(tokenizer, small.files.load_tokenizer()):
        raise SystemExit(f"error: {options.draft} has another tokenizer than {options.model}: {problem}")
    alone = RuntimeOptions(draft_context=other.model.context_length, max_rows=1)
    draft = other.predictor or load_model(small.files, alone, lambda line: None).model
    arms = {"with": Arm(other.model, tokenizer, draft), "without": Arm(plain, tokenizer, None)}
    cases: list[dict[str, Any]] = []
    try:
        for kind, prompt in texts(tokenizer, options.prompt, options.texts):
            for temperature in TEMPERATURES:
                case = compare(arms, prompt, options.out, temperature, options.rounds)
                cases.append({"kind": kind, "temperature": temperature, **case})
                print(line(cases[-1]), flush=True)
    finally:
        for arm in arms.values():
            arm.close()
    for kind in ("prose", "code"):
        ratios = [case["ratio"]["median"] for case in cases if case["kind"] == kind]
        print(f"{kind}: x {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    figures = {
        "model": found.id,
        "precision": options.precision,
        "draft": small.id,
        "sizes": [found.size_bytes, small.size_bytes],
        "cases": cases,
    }
    report(figures)


def line(case: dict[str, Any]) -> str:
    """Return the figures of a case for the terminal."""
    ratio, accepted = case["ratio"], case["accepted_fraction"]
    share = "nothing drafted" if accepted is None else f"accepted {accepted:.0%}"
    return (
        f"{case['kind']:6} at {case['temperature']}: x {ratio['median']:.2f} ({ratio['least']:.2f} to "
        f"{ratio['greatest']:.2f}), per CPU second x {case['cpu_ratio']['median']:.2f}, {share}, "
        f"{case['tokens_per_step']:.2f} tokens per step, "
        f"{case['draft_fraction']:.0%} of the time for drafts"
    )


if __name__ == "__main__":
    measure.run(arguments(), main)
