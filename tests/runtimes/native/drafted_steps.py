"""Steps of two sequences with drafts, for models whose sequences have states. Imported with any form of memory: it
imports no runtime that has allocated some."""

from __future__ import annotations

from collections.abc import Iterator

from onward.engine.model import ModelRunner, Row

_PROMPTS = 40, 9
_DRAFTS = ((20, 12), (1, 31), (16, 16), (0, 0))
"""Of both sequences, by step: together as many as a half of the log has room for."""
_ACCEPTED = ((20, 5), (0, 31), (16, 16), (0, 0))


def drafted_steps(model: ModelRunner) -> Iterator[list[Row]]:
    """Yield steps in which all drafts of the step before, some, or none were accepted. The sequences have the first
    state and the last one."""
    blocks = range(4), range(model.blocks - 4, model.blocks)
    states = 0, model.shape.states - 1

    def row(index: int, tokens: list[int], start: int, *, is_draft: bool = False) -> Row:
        return Row(index, tokens, start, blocks[index], 1, state=states[index], is_draft=is_draft)

    ends = list(_PROMPTS)
    yield [row(index, [3] * end, 0) for index, end in enumerate(ends)]
    for drafts, accepted in zip(_DRAFTS, _ACCEPTED, strict=True):
        yield [
            row(index, [at % model.vocab_size], ends[index] + at, is_draft=at > 0)
            for index, count in enumerate(drafts)
            for at in range(1 + count)
        ]
        ends = [end + 1 + count for end, count in zip(ends, accepted, strict=True)]
