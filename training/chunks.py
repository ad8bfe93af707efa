"""Cutting long documents, at the joints of their text, into chunks that fit a training window."""

from __future__ import annotations

from training.corpus import Source

# Lower bounds of the mean characters a token stands for, so that most chunks fit their window.
CHARACTERS_PER_TOKEN = {"prose": 3.7, "code": 2.9}
SMALLEST_CHUNK = 40


def chunk_source(source: Source, sequence_length: int) -> list[str]:
    """All chunks of a source's training documents, in order."""
    rate = CHARACTERS_PER_TOKEN["code" if source.is_code else "prose"]
    limit = int(sequence_length * rate)
    separator = "\n" if source.is_code else "\n\n"
    return [
        chunk
        for document in source.train
        for chunk in chunk_text(document.text, limit, separator)
        if len(chunk) >= SMALLEST_CHUNK
    ]


def chunk_text(text: str, limit: int, separator: str) -> list[str]:
    """Cut `text` at separators into chunks of at most `limit` characters.

    A single paragraph or line above the limit is cut at its last blank, or hard.
    Leading and trailing newlines of a chunk are dropped; everything else is kept.
    """
    chunks: list[str] = []
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= limit else _joint(text, start, start + limit, separator)
        chunk = text[start:end].strip("\n")
        if chunk:
            chunks.append(chunk)
        start = end
    return chunks


def _joint(text: str, start: int, furthest: int, separator: str) -> int:
    """The last good place to cut in the second half of text[start:furthest]."""
    halfway = start + (furthest - start) // 2
    for joint in (separator, "\n", " "):
        place = text.rfind(joint, halfway, furthest)
        if place > start:
            return place
    return furthest
