"""Models complete passages and choose endings through the API as often as a float64 reference does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.accuracy import CHOICES, CLOZE, Pair, Scored, choice_hits, cloze_hits, encoded, read_items, scorer

import onward
from onward.checkpoints.gguf import read_gguf
from onward.model_files.gguf import GGUFFiles
from tests.checkpoints.reference import Reference
from tests.checkpoints.test_architectures import log_softmax
from tests.real_models.fetch import MODELS, fetched

pytestmark = [pytest.mark.slow, pytest.mark.companion]

MIN_CLOZE, MIN_CHOICES = 24, 32
"""Of 40 items each. Both models had 28 passages and 35 endings or more when the sets were written; of four endings, ten
would be right by chance."""
NUM_REFERENCE_ITEMS = 20
"""Passages that the reference scores: it is slow."""
MAX_EXACT_CHANGES, MAX_FAST_CHANGES = 1, 4
"""Items on which `exact` may differ from the reference, and on which `fast` may."""
MAX_EXACT_ECHO_DIFFERENCE, MAX_FAST_ECHO_DIFFERENCE = 1e-3, 0.5
"""Nats by which the log-probability of a generated token may differ from the one that `echo` has for it."""


@pytest.fixture(scope="module", params=MODELS)
def path(request: pytest.FixtureRequest) -> Path:
    return fetched(request.param)


@pytest.fixture(scope="module", params=["fast", "exact"])
def precision(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module")
def client(path: Path, precision: Any) -> Iterator[onward.Onward]:
    with onward.Onward(model=str(path), kv_memory="400MB", precision=precision) as client:
        yield client


@pytest.fixture(scope="module")
def cloze() -> list[Any]:
    return read_items(CLOZE)


@pytest.fixture(scope="module")
def expected(path: Path, cloze: list[Any]) -> list[bool]:
    """The passages that a float64 forward pass over the file's own weights completes."""
    content = read_gguf(path)
    tensors = {name: tensor.floats().reshape(tensor.shape) for name, tensor in content.tensors.items()}
    reference = Reference(content.metadata, tensors)
    encode = GGUFFiles(path).load_tokenizer().encode
    return cloze_hits(cloze[:NUM_REFERENCE_ITEMS], lambda pairs: [_by(reference, encode, pair) for pair in pairs])


def _by(reference: Reference, encode: Callable[..., list[int]], pair: Pair) -> Scored:
    tokens, count = encoded(encode, pair)
    rows = log_softmax(reference.logits(tokens))[-count - 1 : -1]
    found = rows[np.arange(count), tokens[-count:]]
    return Scored(float(found.sum()), bool((found >= rows.max(axis=-1)).all()))


def test_passages_are_completed_as_by_the_reference(
    client: onward.Onward, cloze: list[Any], expected: list[bool], precision: str
) -> None:
    hits = cloze_hits(cloze, scorer(client))
    limit = MAX_EXACT_CHANGES if precision == "exact" else MAX_FAST_CHANGES
    assert sum(hits) >= MIN_CLOZE
    assert changes(hits[:NUM_REFERENCE_ITEMS], expected) <= limit


def test_the_right_endings_are_chosen(client: onward.Onward) -> None:
    assert sum(choice_hits(read_items(CHOICES), scorer(client))) >= MIN_CHOICES


def changes(one: Sequence[bool], other: Sequence[bool]) -> int:
    return sum(first != second for first, second in zip(one, other, strict=True))


def test_a_generated_token_and_its_echo_have_nearly_the_same_log_probability(
    client: onward.Onward, precision: Any
) -> None:
    prompt = client.tokenizer.encode("The old lighthouse keeper climbed the stairs and", add_special_tokens=True)
    generated = client.completions.create(
        prompt=prompt, max_tokens=64, temperature=0, logprobs=0, ignore_eos=True, return_token_ids=True
    ).choices[0]
    assert generated.token_ids and generated.logprobs is not None
    echoed = client.completions.create(
        prompt=[*prompt, *generated.token_ids], max_tokens=0, echo=True, logprobs=0
    ).choices[0]
    assert echoed.logprobs is not None
    own = np.array(generated.logprobs.token_logprobs, float)
    again = np.array(echoed.logprobs.token_logprobs[len(prompt) :], float)
    limit = MAX_EXACT_ECHO_DIFFERENCE if precision == "exact" else MAX_FAST_ECHO_DIFFERENCE
    assert np.abs(own - again).max() < limit
