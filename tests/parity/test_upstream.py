"""A real llama-server as the engine: the parity table through it, and the same model in Onward's own engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onward.api.openai.response import Choice
from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.settings import Settings
from tests.engines.upstreams.byte_model import llama_server, write_byte_model
from tests.engines.upstreams.harness import complete
from tests.engines.upstreams.parity import check_outcomes, outcomes

REPEATS = "llama-server does not compute the same bits twice: a prefix that was cached changes the last digits"
DEVIATIONS = {
    "usage": "llama-server does not say how much of a prompt it has written to its cache",
    "usage.cached": REPEATS,
    "penalty.prompt": REPEATS,
    "score.batch": REPEATS,
    "fold.echo_logprobs": REPEATS,
    "fold.batch": REPEATS,
    "fold.split": REPEATS,
    "fold.suffix": REPEATS,
    "fold.logprobs": REPEATS,
    "seed.drawn": REPEATS,
    "stream.resumable": REPEATS,
    "prediction.right": "nothing is drafted here: the upstream decides how it computes",
    "prediction.parts": "nothing is drafted here: the upstream decides how it computes",
    "stream.usage_running": "tokens that arrive together are one chunk",
    "stream.obfuscation": "tokens that arrive together are one chunk",
    "stream.interleaved": "choices are computed independently of each other",
}
"""Rows that may fail, and why."""


@pytest.mark.slow
def test_the_parity_table_passes_through_llama_server_or_is_refused_by_name(tmp_path: Path) -> None:
    with llama_server(write_byte_model(tmp_path / "toy.gguf"), "-np", "4", "-c", "8192") as url:
        check_outcomes(list(outcomes(url)), DEVIATIONS, 0.95)


PROMPT = "the cat sat on the mat, für Élise, 日本; the cat sat on the "
SAME_TEXT: dict[str, dict[str, Any]] = {
    "dry": {"dry_multiplier": 2, "dry_allowed_length": 1},
    "allowed": {"allowed_token_ids": [*b"abcdefg "]},
    "allowed, most": {"allowed_token_ids": [*range(101, 250)]},
    "regex": {"regex": "([a-m]{4} ){5}[0-9]{3}"},
    "json": {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
}


@pytest.mark.slow
def test_prompts_are_scored_and_texts_constrained_as_in_the_own_engine(tmp_path: Path) -> None:
    model = write_byte_model(tmp_path / "toy.gguf")

    async def computed(name: str, **more: Any) -> tuple[Choice, dict[str, str]]:
        backend = await asyncio.to_thread(compose, Settings(model=(name,), cache_dir=tmp_path, **more))
        try:
            return await _computed(backend)
        finally:
            await backend.aclose()

    with llama_server(model, "-np", "2", "-c", "4096") as url:
        there = asyncio.run(computed(url.replace("http://", "toy=llama+http://")))
    here = asyncio.run(computed(str(model), precision="exact"))
    assert there[1] == here[1]
    scores = [scored.logprobs.token_logprobs for scored, _ in (there, here) if scored.logprobs is not None]
    assert len(scores) == 2 and scores[0][1:] == pytest.approx(scores[1][1:], abs=0.02)


async def _computed(backend: EmbeddedBackend) -> tuple[Choice, dict[str, str]]:
    """Return the scored prompt, and the text of each request."""
    [model] = backend.served
    [scored] = (await complete(backend, model=model, prompt=PROMPT, echo=True, logprobs=2, max_tokens=0)).choices
    return scored, {
        name: (await complete(backend, model=model, prompt=PROMPT, max_tokens=24, **fields)).choices[0].text
        for name, fields in SAME_TEXT.items()
    }
