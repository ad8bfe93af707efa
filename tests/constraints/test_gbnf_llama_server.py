"""What a llama-server generates by a grammar is what the grammar accepts here."""

from __future__ import annotations

import random
from collections.abc import Iterator

import httpx2
import pytest

from tests.constraints import gbnf_oracle as oracle
from tests.constraints.test_gbnf import GRAMMARS, accepts, compiled
from tests.engines.upstreams.byte_model import llama_server, write_byte_model

pytestmark = pytest.mark.slow

NUM_GRAMMARS, NUM_SEEDS, MAX_TOKENS = 60, 3, 32
LIKED = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "n_predict": MAX_TOKENS, "prompt": "a"}
"""Anything that the grammar allows may come."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(write_byte_model(tmp_path_factory.mktemp("model") / "bytes.gguf")) as url:
        yield url


def generated(url: str, grammar: str, seed: int) -> str | None:
    """A text that llama-server generates and ends itself; None if it refuses the grammar, or the text is cut."""
    body = {**LIKED, "grammar": grammar, "seed": seed, "logit_bias": [[ord(each), 6] for each in 'ab-]\n "']}
    answer = httpx2.post(f"{url}/completion", json=body, timeout=60)
    if answer.status_code == 400:
        return None
    found = answer.raise_for_status().json()
    return str(found["content"]) if found["stop_type"] == "eos" else None


def test_texts_of_random_grammars_in_llama_server_are_accepted(server: str) -> None:
    num_texts = 0
    for seed in range(NUM_GRAMMARS):
        _, written = oracle.Writer(random.Random(seed)).rules()
        first = compiled(written)
        for each in range(NUM_SEEDS):
            text = generated(server, written, each)
            if text is not None:
                assert first is not None and accepts(first, text), (seed, written, text)
                num_texts += 1
    assert num_texts > NUM_GRAMMARS


def test_texts_of_llama_cpps_grammars_in_llama_server_are_accepted(server: str) -> None:
    num_texts = 0
    for path in sorted(GRAMMARS.glob("*.gbnf")):
        grammar = path.read_text(encoding="utf-8")
        first = compiled(grammar)
        assert first is not None
        for seed in range(4):
            text = generated(server, grammar, seed)
            assert text is None or accepts(first, text), (path.stem, text)
            num_texts += text is not None
    assert num_texts > 4
