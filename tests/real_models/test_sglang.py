"""Real SGLang, on this machine's processor, as the engine: the parity table, and what it computes and survives when
Onward starts it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onward.api.openai.response import Choice
from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.engines.programs.engine import ProgramEngine
from onward.engines.programs.kinds import KINDS
from onward.settings import Settings
from tests.engines.programs.test_process import has_ended
from tests.engines.upstreams.harness import complete
from tests.engines.upstreams.parity import check_outcomes, outcomes
from tests.processes import free_port
from tests.real_models.sglang.install import ENVIRONMENT, FLAGS, installed
from tests.real_models.vllm.folders import write_byte_folder
from tests.real_models.vllm.install import NotAvailable
from tests.real_models.vllm.server import running

pytestmark = [pytest.mark.slow, pytest.mark.companion]

RESERVED = "7 tokens of its context cannot be used"
CACHES = "its cache shares single tokens with prompts of rows before, and does not say how much it has written"
DEVIATIONS = {
    "context.exact": RESERVED,
    "context.over": RESERVED,
    "context.default": RESERVED,
    "max_tokens.context": RESERVED,
    "tokenize": RESERVED,
    "truncate_prompt_tokens.-1": RESERVED,
    "usage": CACHES,
    "usage.cached": CACHES,
    "seed.drawn": "it ignores seeds, the drawn ones too",
    "score.batch": "it does not compute the same last digits in another batch",
    "stream.usage_running": "tokens that arrive together are one chunk",
}
"""Rows that may fail, and why."""


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    try:
        found = installed()
    except NotAvailable as reason:
        pytest.skip(f"SGLANG COULD NOT BE INSTALLED: {reason}")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_folder(tmp_path_factory.mktemp("sglang") / "toy")


@pytest.fixture(scope="module")
def url(python: Path, folder: Path) -> Iterator[str]:
    """A server that is already running."""
    port, kind = free_port(), KINDS["sglang"]
    command = [*kind.find(python), "--model-path", str(folder), "--served-model-name", "toy", *FLAGS]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with running(command, kind.variables(), f"http://127.0.0.1:{port}", folder.with_suffix(".log")) as found:
        yield found


def test_the_parity_table_passes_through_it_or_is_refused_by_name(url: str) -> None:
    check_outcomes(list(outcomes(url, "sglang")), DEVIATIONS, 0.75)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def backends(python: Path, folder: Path, loop: asyncio.Runner) -> Iterator[tuple[EmbeddedBackend, EmbeddedBackend]]:
    """A model that SGLang computes, started by Onward, and the same in Onward's own engine."""
    fields: dict[str, Any] = {"model": (str(folder),), "context_length": 512}
    own = compose(Settings(**fields, precision="exact"))
    arguments = tuple(("sglang", flag) for flag in FLAGS)
    there = compose(
        Settings(**fields, engine=(("", "sglang"),), engine_path=(("sglang", python),), engine_arg=arguments)
    )
    engine = there.served["toy"].engine
    assert isinstance(engine, ProgramEngine)
    try:
        yield there, own
    finally:
        loop.run(own.aclose())
        loop.run(there.aclose())
        assert engine.pid is not None and has_ended(engine.pid)


PROMPT = "the cat sat on the mat, für Élise, 日本; the cat sat on the "
SAME_TEXT: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalties": {"presence_penalty": 1.5, "frequency_penalty": 1.0},
    "penalties of a window": {"presence_penalty": 2, "repeat_last_n": 3},
    "biases": {"logit_bias": {"97": 4, "98": -100}},
    "banned": {"banned_tokens": [97, 98, 99]},
    "allowed": {"allowed_token_ids": [*b"abcdefg "]},
    "allowed, most": {"allowed_token_ids": [*range(101, 250)]},
    "bad words": {"bad_words": ["ch", "b"]},
    "dry": {"dry_multiplier": 2, "dry_allowed_length": 1},
    "regex": {"regex": "([a-m]{4} ){5}[0-9]{3}"},
    "json": {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    "min tokens": {"min_tokens": 20},
    "min tokens, then an end": {"min_tokens": 5, "logit_bias": {"256": 100}},
    "min tokens, ends ignored": {"min_tokens": 5, "logit_bias": {"256": 100}, "ignore_eos": True},
}


async def _choice(backend: EmbeddedBackend, **fields: Any) -> Choice:
    [choice] = (await complete(backend, model="toy", **fields)).choices
    return choice


@pytest.mark.parametrize("name", SAME_TEXT)
def test_greedy_texts_are_those_of_the_own_engine(
    backends: tuple[EmbeddedBackend, EmbeddedBackend], loop: asyncio.Runner, name: str
) -> None:
    fields = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, **SAME_TEXT[name]}
    there, here = (loop.run(_choice(backend, **fields)) for backend in backends)
    assert (there.text, there.finish_reason) == (here.text, here.finish_reason)


def test_scores_are_those_of_the_own_engine(
    backends: tuple[EmbeddedBackend, EmbeddedBackend], loop: asyncio.Runner
) -> None:
    fields: dict[str, Any] = {"prompt": PROMPT, "echo": True, "logprobs": 3, "max_tokens": 4}
    there, here = (loop.run(_choice(backend, **fields)).logprobs for backend in backends)
    assert here is not None and there is not None
    assert there.tokens == here.tokens and there.text_offset == here.text_offset
    assert there.token_logprobs[1:] == pytest.approx(here.token_logprobs[1:], abs=1e-3)


def test_a_text_continues_when_it_is_killed(
    backends: tuple[EmbeddedBackend, EmbeddedBackend], loop: asyncio.Runner
) -> None:
    fields: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True, "temperature": 0}
    there, _ = backends
    engine = there.served["toy"].engine
    assert isinstance(engine, ProgramEngine)

    async def disturbed() -> Choice:
        before = engine.load.num_decode_tokens
        task = asyncio.create_task(_choice(there, **fields))
        while engine.load.num_decode_tokens < before + 10:
            await asyncio.sleep(0.01)
        assert engine.pid is not None
        os.killpg(engine.pid, signal.SIGKILL)
        return await task

    undisturbed = loop.run(_choice(there, **fields))
    assert loop.run(disturbed()).text == undisturbed.text
    assert there.health().state == "ready"
