"""The outputs of a run: measures, card, credits."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from training.card import write_card, write_credits
from training.corpus import Document, Source, is_held_out
from training.measures import bits_per_byte, infill_accuracy, infill_spans
from training.presets import PRESETS
from training.scoring import generate
from training.tokenizer import END_OF_TEXT, special_ids


class UniformScorer:
    """A uniform distribution, in which `favourite` is slightly more likely."""

    def __init__(self, vocabulary: int, favourite: int = 0) -> None:
        self._row = np.full(vocabulary, -math.log(vocabulary), dtype=np.float32)
        self._favoured = self._row.copy()
        self._favoured[favourite] += 1e-3

    def log_probabilities(self, ids: list[int]) -> np.ndarray:
        return np.tile(self._row, (len(ids), 1))

    def start(self, ids: list[int]) -> np.ndarray:
        return self._favoured

    def append_token(self, token: int) -> np.ndarray:
        return self._favoured


def test_bits_per_byte_of_a_uniform_model(sources: dict, tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab_size()
    result = bits_per_byte(UniformScorer(vocabulary), sources["tinystories"], tokenizer, 10_000)
    text = "".join(document.text for document in sources["tinystories"].valid)
    tokens = len(tokenizer.encode(text).ids)
    assert result["bits_per_byte"] == pytest.approx(tokens * math.log2(vocabulary) / len(text.encode()), rel=0.02)
    assert result["bytes"] == len(text.encode())


def test_generation_stops_at_the_end_of_text(tokenizer: Tokenizer) -> None:
    end = special_ids(tokenizer)[END_OF_TEXT]
    assert generate(UniformScorer(100, favourite=end), [5], end=end, tokens=9) == [end]
    assert generate(UniformScorer(100, favourite=7), [5], end=end, tokens=9) == [7] * 9


@pytest.mark.parametrize("name", ["tinystories", "python_stdlib"])
def test_infill_spans_are_within_one_line(sources: dict, tokenizer: Tokenizer, name: str) -> None:
    spans = infill_spans(sources[name], 20, seed=1)
    assert spans == infill_spans(sources[name], 20, seed=1)
    assert all(middle.strip() and "\n" not in middle for _, middle, _ in spans)
    result = infill_accuracy(
        UniformScorer(tokenizer.get_vocab_size()), tokenizer, sources[name], 5, seed=1, order="spm"
    )
    assert result == {"exact_match": 0.0, "ended": 1.0, "items": 5}


def test_the_card_has_no_unfilled_placeholder(tmp_path: Path) -> None:
    agreement = {"mean_absolute_difference": 0.01, "tokens": 2000}
    span = {"exact_match": 0.1, "ended": 0.9, "items": 200}
    figures = {
        "training": {
            "preset": "cpu",
            "shape": vars(PRESETS["cpu"].shape),
            "parameters": 9_440_640,
            "tokens": 1,
            "steps": 1,
            "minutes": 1.0,
            "tokens_per_second": 1,
            "tokens_by_source": {"tinystories": 1},
        },
        "bits_per_byte": {"tinystories": {"float": 1.0, "shipped": 1.01, "bytes": 100}},
        "agreement": dict.fromkeys(("fast", "exact"), agreement),
        "lambada": {"accuracy": 0.1, "items": 10},
        "infill": {order: {"prose": span, "code": span} for order in ("spm", "psm")},
        "samples": [{"prompt": "", "suffix": None, "text": "Once", "ended": True, "seed": 1}],
    }
    write_card(tmp_path / "README.md", figures)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "{{" not in card
    assert "| TinyStories | 1.000 | 1.010 | 100 |" in card


def test_every_storybook_author_is_named(tmp_path: Path) -> None:
    books = Source("storybooks_cc_by", (Document("a", "The Hat", "Ann"),), (Document("b", "The Cat", "Bob"),))
    write_credits(tmp_path / "CREDITS.md", books)
    text = (tmp_path / "CREDITS.md").read_text(encoding="utf-8")
    assert "- Ann: The Hat" in text
    assert "- Bob: The Cat" in text


def test_a_small_part_of_the_code_is_held_out() -> None:
    assert 0 < sum(is_held_out(f"module{number}.py") for number in range(1000)) < 60
