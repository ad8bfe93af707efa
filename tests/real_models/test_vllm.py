"""Real vLLM, on this machine's processor, as the engine: the parity table, real clients, and what it computes and
survives when Onward starts it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onward.api.openai.response import Choice
from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.constraints.grammar import choice_grammar, regex_grammar, text_grammar
from onward.constraints.json_schema import json_schema_grammar
from onward.constraints.lark import ending_with
from onward.constraints.matcher import MaskBuffer, TokenTrie
from onward.constraints.tokens import library_tokens
from onward.engines.programs.engine import ProgramEngine
from onward.engines.programs.kinds import KINDS
from onward.errors import HubUnreachable
from onward.models.resolve import resolve
from onward.sampling.masks import pack_mask, unpack_mask
from onward.settings import Settings
from tests.clients.run import CLIENTS, Bench, run_client
from tests.engines.programs.test_process import has_ended
from tests.engines.upstreams.harness import complete
from tests.engines.upstreams.parity import check_outcomes, outcomes
from tests.parity.servers import Server
from tests.real_models.fetch import fetch
from tests.real_models.vllm import masks
from tests.real_models.vllm.folders import write_byte_folder, write_folder_of
from tests.real_models.vllm.install import ENVIRONMENT, FLAGS, NotAvailable, installed
from tests.real_models.vllm.server import vllm_server

pytestmark = [pytest.mark.slow, pytest.mark.companion]

DEVIATIONS = {
    "usage": "vLLM does not say how much of a prompt it has written to its cache",
    "prediction.right": "nothing is drafted here: the upstream decides how it computes",
    "prediction.parts": "nothing is drafted here: the upstream decides how it computes",
    "stream.usage_running": "tokens that arrive together are one chunk",
}
"""Rows that may fail, and why."""
FIVE_CLIENTS = ("openai (Python)", "openai command line 2", "openai (Node) 6", "LangChain OpenAI()", "curl (editors)")


@pytest.fixture(scope="module")
def program() -> Path:
    try:
        return installed()
    except NotAvailable as reason:
        pytest.skip(f"vLLM COULD NOT BE INSTALLED: {reason}")


@pytest.fixture(scope="module")
def url(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the tiny model that is already running."""
    with vllm_server(program, write_byte_folder(tmp_path_factory.mktemp("vllm") / "toy")) as running:
        yield running


def test_the_parity_table_passes_through_it_or_is_refused_by_name(url: str) -> None:
    check_outcomes(list(outcomes(url, "vllm")), DEVIATIONS, 0.97)


def test_five_clients_work_over_it(url: str) -> None:
    class Over(Bench):
        def _start(self, *flags: str, model: str = "toy") -> Server:
            address = f"toy=vllm+{url}"
            server = Server("--tokenizer", "toy=toy", *flags, model=address)
            self._stack.callback(server.close)
            return server

    with closing(Over()) as on:
        reports = [run_client(client, on) for client in CLIENTS if client.name in FIVE_CLIENTS]
    assert len(reports) == len(FIVE_CLIENTS)
    failed = {report.client: report.failed for report in reports if report.failed}
    assert not failed, failed


@dataclass(frozen=True, slots=True)
class Running:
    """A model that vLLM computes, started by Onward, and on the same event loop the same in Onward's own engine."""

    loop: asyncio.Runner
    backend: EmbeddedBackend
    own: EmbeddedBackend

    @property
    def engine(self) -> ProgramEngine:
        engine = self.backend.served["smol"].engine
        assert isinstance(engine, ProgramEngine)
        return engine

    def ask(self, **fields: Any) -> Choice:
        return self.loop.run(self.choice(**fields))

    async def choice(self, **fields: Any) -> Choice:
        [choice] = (await complete(self.backend, model="smol", **fields)).choices
        return choice

    def ask_own(self, **fields: Any) -> Choice:
        [choice] = self.loop.run(complete(self.own, model="smol", **fields)).choices
        return choice


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        file = fetch("smollm2")
    except HubUnreachable as reason:
        pytest.skip(str(reason))
    return write_folder_of(file, tmp_path_factory.mktemp("smol") / "smol")


@pytest.fixture(scope="module")
def running(program: Path, folder: Path) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as loop:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        arguments = tuple(("vllm", flag) for flag in FLAGS)
        fields: dict[str, Any] = {"model": (str(folder),), "context_length": 512}
        own = compose(Settings(**fields, precision="exact"))
        backend = compose(
            Settings(**fields, engine=(("", "vllm"),), engine_path=(("vllm", program),), engine_arg=arguments)
        )
        found = Running(loop, backend, own)
        pid = found.engine.pid
        try:
            yield found
        finally:
            loop.run(own.aclose())
            loop.run(backend.aclose())
            assert pid is not None and has_ended(pid)


PROMPT = "The capital of France is"
SAME_TEXT: dict[str, dict[str, Any]] = {
    "greedy": {},
    "stop": {"stop": ["answer"]},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 1.0},
    "penalties of a window": {"presence_penalty": 2, "repeat_last_n": 3},
    "biases": {"logit_bias": {"7042": -100, "284": 4}},
    "banned": {"banned_tokens": [7042]},
    "allowed": {"allowed_token_ids": [7042, 30, 504, 260]},
    "bad words": {"bad_words": ["Paris", "answer is"]},
    "dry": {"dry_multiplier": 2, "dry_allowed_length": 1, "prompt": "a b c d a b c d a b"},
    "choice": {"choice": ["London", "Paris, France"]},
    "regex": {"regex": "( [A-Z][a-z]+){3}\\."},
    "json": {"json_schema": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}}}},
    "end": {"prompt": "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n", "max_tokens": 60},
    "min tokens": {"prompt": "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n", "min_tokens": 20},
    "min tokens, ends ignored": {
        "prompt": "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n",
        "min_tokens": 20,
        "ignore_eos": True,
    },
}


@pytest.mark.parametrize("name", SAME_TEXT)
def test_greedy_texts_are_those_of_the_own_engine(running: Running, name: str) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, **SAME_TEXT[name]}
    here, there = running.ask_own(**fields), running.ask(**fields)
    assert (there.text, there.finish_reason) == (here.text, here.finish_reason)


GRAMMARS: dict[str, Callable[[], str]] = {
    "regex": lambda: regex_grammar("( [A-Z][a-z]+){3}\\."),
    "slashes": lambda: regex_grammar(r"https?://[a-z./]{3,20}"),
    "counted": lambda: regex_grammar("[A-Za-z ]{1,40}"),
    "any text": lambda: regex_grammar("(.|\n)+"),
    "characters": lambda: regex_grammar("[für日本🦜]{4}é"),
    "choice": lambda: choice_grammar(["London", "Paris, France", "Par is", "日本"]),
    "nothing or more": lambda: regex_grammar("(ab)*"),
    "json": lambda: json_schema_grammar({}, whitespace=None),
    "object": lambda: json_schema_grammar(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "minLength": 2, "maxLength": 9},
                "age": {"type": "integer", "minimum": 7, "maximum": 1234},
                "size": {"type": "number", "exclusiveMinimum": -1.5},
                "tags": {"type": "array", "items": {"enum": ["a", "ab", 1, None]}, "maxItems": 3},
                "when": {"type": "string", "format": "date"},
                "more": {"anyOf": [{"$ref": "#"}, {"type": "null"}, {"pattern": "^x+y?$", "type": "string"}]},
            },
            "required": ["name", "tags"],
            "additionalProperties": False,
        },
        whitespace=None,
    ),
    "compact": lambda: json_schema_grammar({"const": {"a": [1, 2, "x y"]}}, whitespace=None),
    "lark": lambda: 'start: "a" (list | NUMBER)\nlist: "[" list* "]"\nNUMBER: /[0-9]+(\\.[0-9]+)?/',
    "gbnf": lambda: text_grammar('root ::= "yes" (" " word)* | "no"\nword ::= [a-z]+', {}),
}
NUM_WALKS, NUM_STEPS = 8, 40


def walks(trie: TokenTrie, ends: frozenset[int]) -> Iterator[tuple[str, str, list[int], list[Any]]]:
    """Yield a grammar's name, the grammar, tokens that it allows, and the tokens allowed at each position."""
    random, ending = np.random.default_rng(0), pack_mask(ends, trie.vocab_size)
    for name, make in GRAMMARS.items():
        grammar = make()
        for _ in range(NUM_WALKS):
            matcher = trie.compile(grammar)
            tokens: list[int] = []
            found: list[Any] = []
            while not matcher.is_complete and len(tokens) < NUM_STEPS:
                [mask] = MaskBuffer.compute_here(matcher, ending)
                allowed = unpack_mask(mask, trie.vocab_size)
                found.append(masks.summary(allowed))
                allowed[list(ends)] = False
                others = np.flatnonzero(allowed)
                if not others.size:
                    break
                first = others[: 1 + len(others) // 50]  # otherwise texts are mostly long words
                tokens.append(int(random.choice(others if random.random() < 0.5 else first)))
                matcher.consume(tokens[-1])
            if matcher.is_complete:
                found.append(masks.summary(unpack_mask(ending, trie.vocab_size)))
            yield name, grammar, tokens, found


def test_masks_of_its_library_are_those_of_the_own_engine(program: Path, folder: Path) -> None:
    """For random texts of each grammar, before every token; this is what allows vLLM to enforce grammars itself.
    Without white space in JSON: this release has no pattern for it, and allows any."""
    tokenizer = resolve(str(folder)).files.load_tokenizer(None)
    trie = TokenTrie(library_tokens(tokenizer.size, tokenizer, tokenizer))
    ends = tokenizer.end_tokens
    found = list(walks(trie, ends))
    asked = {
        "folder": str(folder),
        "vocab_size": tokenizer.size,
        "walks": [(ending_with(grammar, ends), tokens) for _, grammar, tokens, _ in found],
    }
    ran = subprocess.run(
        [program.with_name("python"), str(Path(masks.__file__))],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env=KINDS["vllm"].variables(),
    )
    for (name, _, tokens, here), there in zip(found, json.loads(ran.stdout), strict=True):
        assert there[: len(here)] == here, f"{name}: {tokens}"


def test_vllm_enforces_grammars_itself(running: Running) -> None:
    assert running.engine._pool is not None and running.engine._pool.traits.has_grammars


def test_scores_are_those_of_the_own_engine(running: Running) -> None:
    fields: dict[str, Any] = {"prompt": PROMPT * 4, "echo": True, "logprobs": 3, "max_tokens": 4}
    here, there = running.ask_own(**fields).logprobs, running.ask(**fields).logprobs
    assert here is not None and there is not None
    assert there.tokens == here.tokens and there.text_offset == here.text_offset
    assert there.token_logprobs[1:] == pytest.approx(here.token_logprobs[1:], abs=1e-3)


@pytest.mark.parametrize("num_prompt", [510, 511, 512])
@pytest.mark.parametrize("fields", [{}, {"echo": True, "logprobs": 1}, {"prompt_logprobs": 0}, {"regex": "[a-z]{9}"}])
def test_prompts_may_fill_the_context(running: Running, num_prompt: int, fields: dict[str, Any]) -> None:
    fields = {"prompt": [504, 3575] * 256, "ban_eos_token": "regex" not in fields, **fields}
    prompt, left = fields["prompt"][:num_prompt], 512 - num_prompt
    choice = running.ask(**fields | {"prompt": prompt, "max_tokens": left})
    assert choice.finish_reason == "length"
    if fields.get("echo"):
        own = running.ask_own(**fields | {"prompt": prompt, "max_tokens": left})
        assert own.logprobs is not None and choice.logprobs is not None
        assert choice.logprobs.token_logprobs[1:] == pytest.approx(own.logprobs.token_logprobs[1:], abs=1e-3)


def test_what_a_client_leaves_is_not_computed(running: Running) -> None:
    async def leave() -> int:
        engine, before = running.engine, running.engine.load.num_decode_tokens
        task = asyncio.create_task(running.choice(prompt=PROMPT, max_tokens=400, ignore_eos=True))
        while engine.load.num_decode_tokens < before + 3:
            await asyncio.sleep(0.01)
        task.cancel()
        while engine.load.num_running:
            await asyncio.sleep(0.01)
        return engine.load.num_decode_tokens - before

    assert running.loop.run(leave()) < 100


def processes_of(group: int) -> dict[int, str]:
    """The processes of a group, by id, with their titles."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if int(fields[2]) == group:
                found[int(entry.name)] = title
    return found


@pytest.mark.parametrize("victim", ["EngineCore", "all"])
def test_a_text_continues_when_it_is_killed(running: Running, victim: str) -> None:
    fields: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 80, "ignore_eos": True, "temperature": 0}

    async def disturbed() -> Choice:
        engine, before = running.engine, running.engine.load.num_decode_tokens
        task = asyncio.create_task(running.choice(**fields))
        while engine.load.num_decode_tokens < before + 10:
            await asyncio.sleep(0.01)
        assert engine.pid is not None
        if victim == "all":
            os.killpg(engine.pid, signal.SIGKILL)
        else:
            [process] = [pid for pid, title in processes_of(engine.pid).items() if victim in title]
            os.kill(process, signal.SIGKILL)
        while engine.state.status == "running":
            await asyncio.sleep(0.01)
        return await task

    undisturbed = running.ask(**fields)
    assert running.loop.run(disturbed()).text == undisturbed.text
    assert running.backend.health().state == "ready"
