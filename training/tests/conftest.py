"""A small corpus, and a tokenizer trained on it."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from training.corpus import SOURCES, Document, Source
from training.tokenizer import train_tokenizer

STORY = (
    "Once there was a small boat. It sailed on the wide lake every morning!\n\n"
    '"Where shall we go?" asked the duck. "To the other side," said the frog.\n\n'
    "They laughed, and the wind laughed with them, and then it was evening."
)
CODE = (
    'def add(first, second):\n    """Add two numbers."""\n    total = first + second\n    return total\n'
    "\n\nprint(add(1, 23))\n"
)


@pytest.fixture(scope="session")
def sources() -> dict[str, Source]:
    """All sources of the recipe, with numbered variants of two texts."""
    result = {}
    for name in SOURCES:
        text = CODE if name == "python_stdlib" else STORY
        documents = tuple(Document(text=f"{text} {name} {number}" * 3) for number in range(20))
        result[name] = Source(name, documents, documents[:2])
    return result


@pytest.fixture(scope="session")
def tokenizer(sources: dict[str, Source]) -> Tokenizer:
    """A tokenizer of the recipe, with a small vocabulary because the corpus is small."""
    return train_tokenizer(sources, seed=1)
