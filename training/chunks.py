"""Split long documents at paragraph or line breaks into chunks that fit a training window."""

from __future__ import annotations

from training.corpus import Source

# Lower bounds of the mean characters per token, so that most chunks fit their window.
CHARACTERS_PER_TOKEN = {"prose": 3.7, "code": 2.9}
MIN_CHUNK_CHARACTERS = 40


def chunk_source(source: Source, sequence_length: int) -> list[str]:
    """Return all chunks of a source's training documents, in order."""
    rate = CHARACTERS_PER_TOKEN["code" if source.is_code else "prose"]
    limit = int(sequence_length * rate)
    separator = "\n" if source.is_code else "\n\n"
    return [
        chunk
        for document in source.train
        for chunk in chunk_text(document.text, limit, separator)
        if len(chunk) >= MIN_CHUNK_CHARACTERS
    ]


def chunk_text(text: str, limit: int, separator: str) -> list[str]:
    """Split `text` at separators into chunks of at most `limit` characters.

    A longer paragraph or line is split at its last space, or at the limit if it has none. Newlines at the start and
    end of a chunk are dropped; everything else is kept.
    """
    chunks: list[str] = []
    start = 0
    while start < len(text):
        end = len(text) if len(text) - start <= limit else _cut_position(text, start, start + limit, separator)
        chunk = text[start:end].strip("\n")
        if chunk:
            chunks.append(chunk)
        start = end
    return chunks


def _cut_position(text: str, start: int, furthest: int, separator: str) -> int:
    """Return the last separator, newline or space in the second half of text[start:furthest], else `furthest`."""
    halfway = start + (furthest - start) // 2
    for break_text in (separator, "\n", " "):
        position = text.rfind(break_text, halfway, furthest)
        if position > start:
            return position
    return furthest
