"""Optional fields of responses without their None: a test fails where a field that it needs is missing."""

from __future__ import annotations

from onward.api.openai.response import Choice, Chunk, Logprobs, Usage


def logprobs_of(choice: Choice) -> Logprobs:
    """Return the `logprobs` of a choice that has them."""
    assert choice.logprobs is not None
    return choice.logprobs


def alternatives_of(choice: Choice) -> list[dict[str, float]]:
    """Return the `top_logprobs` of a choice that has them; null entries are empty."""
    top_logprobs = logprobs_of(choice).top_logprobs
    assert top_logprobs is not None
    return [entry or {} for entry in top_logprobs]


def usage_of(chunk: Chunk) -> Usage:
    """Return the `usage` of a chunk that has it."""
    assert isinstance(chunk.usage, Usage)
    return chunk.usage
