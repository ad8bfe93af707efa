"""Edits of code by one client: Onward, whose drafts come from the text to edit, and llama-server, on the same file.

`python -m benchmarks.edit_pair MODEL.gguf`. Each edit is requested greedily and in turns from Onward with the old text
as `prediction`, from Onward without it (which then finds drafts in the prompt), from Onward with `--speculation off`,
and from llama-server. Every ratio is taken within one edit. The model itself writes the answers, so fewer drafts of a
model that edits badly are accepted.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import measure, peer_build
from benchmarks.arms import PEER
from benchmarks.edits import Edit, code_edits
from benchmarks.http_client import parse_response, send_once
from benchmarks.llama_server import Slots, serve_peer
from benchmarks.load import run_async
from benchmarks.measure import BenchmarkError
from benchmarks.models import model_id
from benchmarks.outcome import Outcome, parse_outcome
from benchmarks.server_process import Server, serve

CONTEXT_TOKENS = 4096
PROMPT = (
    "<|im_start|>user\n{instruction} Change nothing else. Answer with the whole file only.\n\n"
    "```python\n{before}```<|im_end|>\n<|im_start|>assistant\n```python\n"
)
"""In the form of Qwen's chat models, which other models read as text."""
WARM_UP = Edit("warm-up", "Add a blank line.", "a = 1\nb = 2\n", "")


@dataclass(frozen=True, slots=True)
class Arm:
    """A server, and the fields of its requests beyond those that all arms send. No arm finds a prompt in a cache."""

    name: str
    server: Server
    model: str
    fields: Callable[[Edit], dict[str, Any]] = lambda edit: {}

    def body(self, edit: Edit, out: int) -> dict[str, Any]:
        """Return the body of a request for an edit, of at most `out` tokens."""
        prompt = PROMPT.format(instruction=edit.instruction, before=edit.before)
        return {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": out,
            "temperature": 0,
            "stop": ["```"],
            "stream": True,
            "stream_options": {"include_usage": True},
            **({} if self.name == PEER else {"cache_salt": f"{self.name}, {edit.name}"}),
            **self.fields(edit),
        }


def ask(arm: Arm, edit: Edit, out: int) -> tuple[Outcome, str]:
    """Return the outcome of a request for an edit, and the text. Raises BenchmarkError if it failed."""
    received = run_async(lambda: send_once(arm.server.url, arm.body(edit, out)))
    outcome = parse_outcome(received)
    chunks = [json.loads(data) for _, data in parse_response(received).events if data != b"[DONE]"]
    text = "".join(choice["text"] for chunk in chunks for choice in chunk.get("choices", []))
    if outcome.error or outcome.tokens < 2:
        raise BenchmarkError(f"{arm.name}, {edit.name}: {outcome.error or f'{outcome.tokens} tokens'}")
    return outcome, text


def rate(outcome: Outcome) -> float:
    """Return tokens per second from the request to its end, prefill included."""
    return outcome.tokens / outcome.seconds


def decode_rate(outcome: Outcome) -> float:
    """Return tokens per second after the first one."""
    return 1 / outcome.mean_itl


def arms(stack: ExitStack, gguf: Path, program: Path, threads: int) -> Iterator[Arm]:
    """Start the servers, and yield the arms."""
    drafting = stack.enter_context(serve(str(gguf)))
    plain = stack.enter_context(serve(str(gguf), "--speculation", "off"))
    peer = stack.enter_context(serve_peer(program, gguf, Slots(1, CONTEXT_TOKENS, threads)))
    name = model_id(str(gguf))
    yield Arm(
        "Onward, prediction",
        drafting,
        name,
        lambda edit: {"prediction": {"type": "content", "content": edit.before}},
    )
    yield Arm("Onward, prompt lookup", drafting, name)
    yield Arm("Onward, no drafts", plain, name)
    yield Arm(PEER, peer, "peer", lambda edit: {"cache_prompt": False})


def arguments() -> argparse.ArgumentParser:
    parser = measure.parser("edit_pair", __doc__)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf", help="a GGUF file of a model that was taught to edit")
    parser.add_argument("--out", type=int, default=400, help="tokens of each answer, at most (default 400)")
    parser.add_argument("--threads", type=int, default=2, help="threads of llama-server (default 2)")
    parser.add_argument("--llama-server", type=Path, help="default: the one on PATH, else built into .peers")
    return parser


def main(options: argparse.Namespace, report: measure.Report) -> None:
    program = peer_build.find(peer_build.SERVER, options.llama_server)
    found: dict[str, dict[str, dict[str, float]]] = {}
    with ExitStack() as stack:
        compared = list(arms(stack, options.model, program, options.threads))
        for arm in compared:
            ask(arm, WARM_UP, 8)
        for number, edit in enumerate(code_edits()):
            first = number % len(compared)
            answers = {arm.name: ask(arm, edit, options.out) for arm in compared[first:] + compared[:first]}
            found[edit.name] = {
                name: {"tok_s": rate(outcome), "decode_tok_s": decode_rate(outcome), "tokens": outcome.tokens}
                for name, (outcome, _) in answers.items()
            }
            texts = {name: text for name, (_, text) in answers.items()}
            print(lines(edit.name, found[edit.name], texts), flush=True)
    for name in (arm.name for arm in compared if arm.name != PEER):
        ratios = [each[name]["tok_s"] / each[PEER]["tok_s"] for each in found.values()]
        print(f"{name} : {PEER}, median of {len(ratios)} edits: {statistics.median(ratios):.2f}×")
    report({"edits": found})


def lines(edit: str, found: dict[str, dict[str, float]], texts: dict[str, str]) -> str:
    """Return the lines of one edit for the terminal."""
    lines = [edit]
    for name, each in found.items():
        same = "" if texts[name] == texts[PEER] else f", another text than {PEER}'s"
        rates = f"{each['tok_s']:6.1f} tok/s ({each['tok_s'] / found[PEER]['tok_s']:.2f}×)"
        decoding = f"{each['decode_tok_s']:6.1f} after the first token"
        lines.append(f"  {name:22} {rates}, {decoding}, {each['tokens']:.0f} tokens{same}")
    return "\n".join(lines)


if __name__ == "__main__":
    measure.run(arguments(), main)
