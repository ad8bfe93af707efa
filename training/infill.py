"""Fill-in-the-middle transforms (Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle").

A text is split into prefix, middle and suffix at character positions; the middle is moved to the end. Two orders are
trained:

    PSM  <|fim_prefix|> prefix <|fim_suffix|> suffix <|fim_middle|> middle <|endoftext|>
    SPM  <|fim_prefix|> <|fim_suffix|> suffix <|fim_middle|> prefix middle <|endoftext|>
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from tokenizers import Tokenizer

from training.chunks import MIN_CHUNK_CHARACTERS, chunk_text
from training.tokenizer import END_OF_TEXT, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, encode, special_ids

CODE_RATE = 0.5
PROSE_RATE = 1 / 3
SPM_RATE = 0.7
"""The fraction of SPM: a small model learns it sooner, because the middle directly follows its prefix."""

SENTENCE = re.compile(r"[^\s.!?][^.!?\n]*[.!?]+[\"']?")
WORD = re.compile(r"\S+")
LINE = re.compile(r"[^\n]*\S[^\n]*")

# Weights with which each kind of span is selected.
CODE_SPANS = {"line": 0.35, "line_tail": 0.25, "words": 0.15, "characters": 0.15, "lines": 0.10}
PROSE_SPANS = {"sentence": 0.30, "words": 0.45, "characters": 0.15, "line": 0.10}

# Many examples are short excerpts of a chunk: more middles per token, and closer context.
EXCERPTS_RATE = 0.6
EXCERPT_CHARACTERS = (160, 700)


@dataclass(frozen=True)
class Cut:
    """A text in three parts, which joined in order are the text."""

    prefix: str
    middle: str
    suffix: str


def choose_cut(text: str, *, is_code: bool, rng: random.Random) -> Cut:
    """Select one span of `text` as the middle, of a kind sampled by the span weights."""
    weights = CODE_SPANS if is_code else PROSE_SPANS
    kind = rng.choices(list(weights), list(weights.values()))[0]
    start, end = _SPAN_KINDS[kind](text, rng) or _characters(text, rng)
    return Cut(text[:start], text[start:end], text[end:])


def prefix_suffix_middle(tokenizer: Tokenizer, cut: Cut) -> list[int]:
    """Return token ids in PSM order, ending with the end of text."""
    ids = special_ids(tokenizer)
    return [
        ids[FIM_PREFIX],
        *encode(tokenizer, cut.prefix),
        ids[FIM_SUFFIX],
        *encode(tokenizer, cut.suffix),
        ids[FIM_MIDDLE],
        *encode(tokenizer, cut.middle),
        ids[END_OF_TEXT],
    ]


def suffix_prefix_middle(tokenizer: Tokenizer, cut: Cut) -> list[int]:
    """Return token ids in SPM order, ending with the end of text.

    Prefix and middle are encoded separately, as they are when a prompt is continued.
    """
    ids = special_ids(tokenizer)
    return [
        ids[FIM_PREFIX],
        ids[FIM_SUFFIX],
        *encode(tokenizer, cut.suffix),
        ids[FIM_MIDDLE],
        *encode(tokenizer, cut.prefix),
        *encode(tokenizer, cut.middle),
        ids[END_OF_TEXT],
    ]


def infill_prompt(tokenizer: Tokenizer, prefix: str, suffix: str, order: str) -> list[int]:
    """Return the prompt, in the order "psm" or "spm", after which the model generates the middle."""
    arrange = {"psm": prefix_suffix_middle, "spm": suffix_prefix_middle}[order]
    return arrange(tokenizer, Cut(prefix, "", suffix))[:-1]


def excerpts(text: str, *, is_code: bool, rng: random.Random) -> list[str]:
    """Return the texts of infilling examples: `text` itself, or all of it in short excerpts."""
    if rng.random() >= EXCERPTS_RATE:
        return [text]
    limit = rng.randint(*EXCERPT_CHARACTERS)
    return [
        excerpt
        for excerpt in chunk_text(text, limit, "\n" if is_code else "\n\n")
        if len(excerpt) >= MIN_CHUNK_CHARACTERS
    ]


def transform(tokenizer: Tokenizer, text: str, *, is_code: bool, rng: random.Random) -> tuple[list[int], int]:
    """Return token ids of `text` as an infilling example in one of the two orders, and how many of the last ids are the
    middle, including the end of text.
    """
    cut = choose_cut(text, is_code=is_code, rng=rng)
    arrange = suffix_prefix_middle if rng.random() < SPM_RATE else prefix_suffix_middle
    return arrange(tokenizer, cut), len(encode(tokenizer, cut.middle)) + 1


def _characters(text: str, rng: random.Random) -> tuple[int, int]:
    """Return a span between two uniform positions, as in the paper."""
    start, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    return start, end


def _pick(pattern: re.Pattern[str], text: str, rng: random.Random) -> tuple[int, int] | None:
    """Return the first match of `pattern` after a random position, else after the start, None if there is none."""
    match = pattern.search(text, rng.randrange(len(text))) if text else None
    match = match or pattern.search(text)
    return match.span() if match else None


def _line(text: str, rng: random.Random) -> tuple[int, int] | None:
    """Return a whole line without its indentation."""
    span = _pick(re.compile(r"(?m)(?<=^)[^\n]*\S[^\n]*$"), text, rng)
    if span is None:
        return None
    start, end = span
    return start + len(text[start:end]) - len(text[start:end].lstrip()), end


def _line_tail(text: str, rng: random.Random) -> tuple[int, int] | None:
    """Return a span from a random position in a line to the end of that line, as at an editor's cursor."""
    span = _line(text, rng)
    return None if span is None else (rng.randint(*span), span[1])


def _lines(text: str, rng: random.Random) -> tuple[int, int] | None:
    """Return two to six whole lines."""
    first = _line(text, rng)
    if first is None:
        return None
    end = first[1]
    for _ in range(rng.randint(1, 5)):
        following = text.find("\n", end + 1)
        end = len(text) if following < 0 else following
    return first[0], end


def _sentence(text: str, rng: random.Random) -> tuple[int, int] | None:
    """Return one sentence; half of the time with the space before it."""
    span = _pick(SENTENCE, text, rng)
    return None if span is None else _with_space(text, span, rng)


def _words(text: str, rng: random.Random) -> tuple[int, int] | None:
    """Return one to eight words of one line; half of the time with the space before them."""
    span = _pick(WORD, text, rng)
    if span is None:
        return None
    start, end = span
    for _ in range(rng.randint(0, 7)):
        following = re.compile(r"[ \t]+\S+").match(text, end)
        if following is None:
            break
        end = following.end()
    return _with_space(text, (start, end), rng)


def _with_space(text: str, span: tuple[int, int], rng: random.Random) -> tuple[int, int]:
    """Extend the span to a preceding space, half of the time."""
    start, end = span
    if start > 0 and text[start - 1] == " " and rng.random() < 0.5:
        start -= 1
    return start, end


_SPAN_KINDS = {
    "line": _line,
    "line_tail": _line_tail,
    "lines": _lines,
    "words": _words,
    "sentence": _sentence,
    "characters": _characters,
}
