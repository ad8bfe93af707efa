"""Measures that the card reports, on text held out from training."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from training.corpus import Source
from training.infill import LINE, SENTENCE, WORD, infill_prompt
from training.presets import CONTEXT_LENGTH
from training.scoring import Scorer, generate
from training.tokenizer import END_OF_TEXT, encode, special_ids
from training.validation import excerpt

INFILL_TOKENS = 48
PREFIX_CHARACTERS = 1_000
SUFFIX_CHARACTERS = 500


def held_out_windows(source: Source, tokenizer: Tokenizer, size: int) -> list[list[int]]:
    """Return about `size` characters of a validation split as windows that each start with the end of text."""
    end = special_ids(tokenizer)[END_OF_TEXT]
    windows = []
    for text in excerpt([document.text for document in source.valid], size):
        ids = encode(tokenizer, text)
        step = CONTEXT_LENGTH - 1
        windows += [[end, *ids[start : start + step]] for start in range(0, len(ids), step)]
    return windows


def target_log_probabilities(scorer: Scorer, window: list[int]) -> np.ndarray:
    """Return the log-probabilities in nats of the tokens after the first: float32 [len(window) - 1]."""
    table = scorer.log_probabilities(window[:-1])
    return table[np.arange(len(window) - 1), window[1:]]


def bits_per_byte(scorer: Scorer, source: Source, tokenizer: Tokenizer, size: int) -> dict[str, float]:
    """Return bits per byte over about `size` characters of the validation split, and the number of bytes measured."""
    nats = 0.0
    measured = 0
    for window in held_out_windows(source, tokenizer, size):
        nats -= float(target_log_probabilities(scorer, window).sum())
        measured += len(tokenizer.decode(window[1:], skip_special_tokens=False).encode())
    return {"bits_per_byte": round(nats / math.log(2) / measured, 4), "bytes": measured}


def lambada_accuracy(scorer: Scorer, tokenizer: Tokenizer, path: Path, items: int) -> dict[str, float]:
    """Return how often greedy decoding generates exactly the last word of a LAMBADA passage."""
    end = special_ids(tokenizer)[END_OF_TEXT]
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[:items]]
    correct = 0
    for record in records:
        word = encode(tokenizer, " " + record["continuation"].strip())
        context = [end, *encode(tokenizer, record["context"].rstrip())][-(CONTEXT_LENGTH - len(word)) :]
        table = scorer.log_probabilities([*context, *word[:-1]])
        correct += bool((table[len(context) - 1 :].argmax(-1) == word).all())
    return {"accuracy": round(correct / len(records), 4), "items": len(records)}


def infill_spans(source: Source, items: int, seed: int) -> list[tuple[str, str, str]]:
    """Return (prefix, middle, suffix) of held-out spans within one line.

    Code: a whole line without its indentation. Prose: one to four words within a sentence.
    """
    rng = random.Random(f"{seed}/{source.name}/infill")
    find = _code_line if source.is_code else _prose_words
    spans: list[tuple[str, str, str]] = []
    while len(spans) < items:
        text = rng.choice(source.valid).text
        span = find(text, rng)
        if span is not None:
            start, end = span
            prefix = text[max(0, start - PREFIX_CHARACTERS) : start]
            spans.append((prefix, text[start:end], text[end : end + SUFFIX_CHARACTERS]))
    return spans


def _code_line(text: str, rng: random.Random) -> tuple[int, int] | None:
    """Return a line of 8 to 60 characters that is not a comment, None if the one selected is not suitable."""
    lines = [match.span() for match in LINE.finditer(text)]
    start, end = rng.choice(lines)
    line = text[start:end]
    stripped = line.strip()
    if not 8 <= len(stripped) <= 60 or stripped.startswith("#"):
        return None
    return start + len(line) - len(line.lstrip()), start + len(line.rstrip())


def _prose_words(text: str, rng: random.Random) -> tuple[int, int] | None:
    """Return one to four words inside a sentence, without its first and last word, None if it is too short."""
    sentence = SENTENCE.search(text, rng.randrange(len(text)))
    if sentence is None:
        return None
    words = [match.span() for match in WORD.finditer(text, *sentence.span())]
    if len(words) < 6:
        return None
    count = rng.randint(1, 4)
    first = rng.randint(1, len(words) - count - 1)
    return words[first][0], words[first + count - 1][1]


def infill_accuracy(
    scorer: Scorer, tokenizer: Tokenizer, source: Source, items: int, seed: int, order: str
) -> dict[str, float]:
    """Return the fraction of greedy infills that equal the missing span (stripped), and of those that end with the
    end of text."""
    end = special_ids(tokenizer)[END_OF_TEXT]
    equal = ended = 0
    for prefix, middle, suffix in infill_spans(source, items, seed):
        generated = generate(scorer, infill_prompt(tokenizer, prefix, suffix, order), end=end, tokens=INFILL_TOKENS)
        ended += generated[-1] == end
        equal += tokenizer.decode(generated).strip() == middle.strip()
    return {"exact_match": round(equal / items, 4), "ended": round(ended / items, 4), "items": items}


def agreement(exact: Scorer, other: Scorer, sources: dict[str, Source], tokenizer: Tokenizer, tokens: int) -> dict:
    """Return the difference of `other` from `exact` in nats, on held-out tokens, equally many of each source.

    `mean_absolute_difference` is over the held-out tokens themselves;
    `mean_absolute_difference_all` over the whole vocabulary at the same positions.
    """
    share = -(-tokens // len(sources))
    of_targets: list[float] = []
    of_all: list[float] = []
    for source in sources.values():
        ids = [i for window in held_out_windows(source, tokenizer, 12 * share) for i in window][: share + 1]
        difference = np.abs(exact.log_probabilities(ids[:-1]) - other.log_probabilities(ids[:-1]))
        of_targets += difference[np.arange(len(ids) - 1), ids[1:]].tolist()
        of_all += difference.mean(-1).tolist()
    return {
        "mean_absolute_difference": round(float(np.mean(of_targets)), 5),
        "mean_absolute_difference_all": round(float(np.mean(of_all)), 5),
        "tokens": len(of_targets),
    }
