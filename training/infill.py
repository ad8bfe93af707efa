"""Fill-in-the-middle transforms (Bavarian et al. 2022, "Efficient Training of Language Models to Fill in the Middle").

A text is cut into prefix, middle and suffix at character positions; the middle is moved
to the end. Two orders are trained:

    PSM  <|fim_prefix|> prefix <|fim_suffix|> suffix <|fim_middle|> middle <|endoftext|>
    SPM  <|fim_prefix|> <|fim_suffix|> suffix <|fim_middle|> prefix middle <|endoftext|>
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from tokenizers import Tokenizer

from training.chunks import SMALLEST_CHUNK, chunk_text
from training.tokenizer import END_OF_TEXT, FIM_MIDDLE, FIM_PREFIX, FIM_SUFFIX, encode, special_ids

CODE_RATE = 0.5
PROSE_RATE = 1 / 3
SPM_RATE = 0.7
"""The share of the second order: a small model learns it sooner, as the middle follows its prefix directly."""

SENTENCE = re.compile(r"[^\s.!?][^.!?\n]*[.!?]+[\"']?")
WORD = re.compile(r"\S+")
LINE = re.compile(r"[^\n]*\S[^\n]*")

# How often each kind of span is cut, as weights.
CODE_SPANS = {"line": 0.35, "line_tail": 0.25, "words": 0.15, "characters": 0.15, "lines": 0.10}
PROSE_SPANS = {"sentence": 0.30, "words": 0.45, "characters": 0.15, "line": 0.10}

# Many examples are short pieces of a chunk: more middles a token, and nearer context.
PIECES_RATE = 0.6
PIECE_CHARACTERS = (160, 700)


@dataclass(frozen=True)
class Cut:
    """A text in three parts; joined in order they are the text again."""

    prefix: str
    middle: str
    suffix: str


def choose_cut(text: str, *, is_code: bool, draw: random.Random) -> Cut:
    """Cut one span out of `text`, of a kind drawn from the span weights."""
    weights = CODE_SPANS if is_code else PROSE_SPANS
    kind = draw.choices(list(weights), list(weights.values()))[0]
    start, end = _SPAN_KINDS[kind](text, draw) or _characters(text, draw)
    return Cut(text[:start], text[start:end], text[end:])


def prefix_suffix_middle(tokenizer: Tokenizer, cut: Cut) -> list[int]:
    """Token ids in PSM order, ending with the end of text."""
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
    """Token ids in SPM order; prefix and middle are encoded apart, as they are when a prompt is continued."""
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
    """The prompt, in the order "psm" or "spm", after which the model writes the middle."""
    arrange = {"psm": prefix_suffix_middle, "spm": suffix_prefix_middle}[order]
    return arrange(tokenizer, Cut(prefix, "", suffix))[:-1]


def pieces(text: str, *, is_code: bool, draw: random.Random) -> list[str]:
    """The texts to make infilling examples of: `text` itself, or all of it in short pieces."""
    if draw.random() >= PIECES_RATE:
        return [text]
    limit = draw.randint(*PIECE_CHARACTERS)
    return [piece for piece in chunk_text(text, limit, "\n" if is_code else "\n\n") if len(piece) >= SMALLEST_CHUNK]


def transform(tokenizer: Tokenizer, text: str, *, is_code: bool, draw: random.Random) -> tuple[list[int], int]:
    """Token ids of `text` as an infilling example in one of the two orders, and how many of the last are the middle.

    The end of text counts to the middle.
    """
    cut = choose_cut(text, is_code=is_code, draw=draw)
    arrange = suffix_prefix_middle if draw.random() < SPM_RATE else prefix_suffix_middle
    return arrange(tokenizer, cut), len(encode(tokenizer, cut.middle)) + 1


def _characters(text: str, draw: random.Random) -> tuple[int, int]:
    """Two uniform positions: the paper's random span."""
    start, end = sorted((draw.randint(0, len(text)), draw.randint(0, len(text))))
    return start, end


def _pick(pattern: re.Pattern[str], text: str, draw: random.Random) -> tuple[int, int] | None:
    """One match of `pattern`, found from a random position (then from the start)."""
    match = pattern.search(text, draw.randrange(len(text))) if text else None
    match = match or pattern.search(text)
    return match.span() if match else None


def _line(text: str, draw: random.Random) -> tuple[int, int] | None:
    """A whole line without its indentation."""
    span = _pick(re.compile(r"(?m)(?<=^)[^\n]*\S[^\n]*$"), text, draw)
    if span is None:
        return None
    start, end = span
    return start + len(text[start:end]) - len(text[start:end].lstrip()), end


def _line_tail(text: str, draw: random.Random) -> tuple[int, int] | None:
    """From some place within a line to the end of that line, as at a writer's cursor."""
    span = _line(text, draw)
    return None if span is None else (draw.randint(*span), span[1])


def _lines(text: str, draw: random.Random) -> tuple[int, int] | None:
    """Two to six whole lines."""
    first = _line(text, draw)
    if first is None:
        return None
    end = first[1]
    for _ in range(draw.randint(1, 5)):
        following = text.find("\n", end + 1)
        end = len(text) if following < 0 else following
    return first[0], end


def _sentence(text: str, draw: random.Random) -> tuple[int, int] | None:
    """One sentence; half of the time with the blank before it."""
    span = _pick(SENTENCE, text, draw)
    return None if span is None else _with_blank(text, span, draw)


def _words(text: str, draw: random.Random) -> tuple[int, int] | None:
    """One to eight words of one line; half of the time with the blank before them."""
    span = _pick(WORD, text, draw)
    if span is None:
        return None
    start, end = span
    for _ in range(draw.randint(0, 7)):
        following = re.compile(r"[ \t]+\S+").match(text, end)
        if following is None:
            break
        end = following.end()
    return _with_blank(text, (start, end), draw)


def _with_blank(text: str, span: tuple[int, int], draw: random.Random) -> tuple[int, int]:
    """Move the start over one preceding space, half of the time."""
    start, end = span
    if start > 0 and text[start - 1] == " " and draw.random() < 0.5:
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
