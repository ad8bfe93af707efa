"""Partial choices become a whole completion, or chunks: two folds of one stream, so they cannot disagree."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field

import msgspec

from onward.completions.answer import Answer
from onward.completions.logprobs import extend
from onward.protocol.ids import completion_id
from onward.protocol.request import CompletionRequest
from onward.protocol.response import Choice, Chunk, Completion, Logprobs, Usage


@dataclass(frozen=True, slots=True)
class Identity:
    """What all chunks of an answer share. `created` is in Unix seconds."""

    id: str = field(default_factory=completion_id)
    created: int = field(default_factory=lambda: int(time.time()))


async def fold_whole(answer: Answer, identity: Identity | None = None) -> Completion:
    """Wait for all of an answer. Raises ApiError when it fails part-way."""
    identity = identity or Identity()
    folded = FoldedChoices()
    async for choices in answer:
        folded.add(choices)
    return Completion(
        id=identity.id,
        created=identity.created,
        model=answer.model,
        system_fingerprint=answer.fingerprint,
        choices=folded.choices(),
        usage=answer.usage,
    )


async def fold_chunks(
    answer: Answer, request: CompletionRequest, identity: Identity | None = None
) -> AsyncGenerator[list[Chunk]]:
    """The chunks that each engine step makes ready; with `include_usage` one more at the end.

    Raises ApiError when generation fails part-way.
    """
    identity = identity or Identity()

    def chunk(choices: list[Choice], usage: Usage | None) -> Chunk:
        return Chunk(
            id=identity.id,
            object="text_completion",
            created=identity.created,
            choices=choices,
            model=answer.model,
            system_fingerprint=answer.fingerprint,
            usage=usage if request.include_usage else msgspec.UNSET,
        )

    async for choices in answer:
        running = answer.usage if request.continuous_usage_stats else None
        yield [chunk([choice], running) for choice in choices]
    if request.include_usage:
        yield [chunk([], answer.usage)]


class FoldedChoices:
    """Joins partial choices by index."""

    def __init__(self) -> None:
        self._texts: dict[int, list[str]] = {}
        self._choices: dict[int, Choice] = {}

    def add(self, parts: Iterable[Choice]) -> None:
        for part in parts:
            self._texts.setdefault(part.index, []).append(part.text)
            whole = self._choices.get(part.index)
            if whole is None:
                self._choices[part.index] = msgspec.structs.replace(part, logprobs=_copied(part))
                continue
            if whole.logprobs is not None and part.logprobs is not None:
                extend(whole.logprobs, part.logprobs)
            whole.finish_reason = part.finish_reason or whole.finish_reason

    def choices(self) -> list[Choice]:
        """The whole choices, by index."""
        return [
            msgspec.structs.replace(self._choices[index], text="".join(self._texts[index]))
            for index in sorted(self._choices)
        ]


def _copied(part: Choice) -> Logprobs | None:
    """A Logprobs of our own to extend: the partial one may still be read by others."""
    if part.logprobs is None:
        return None
    logprobs = msgspec.structs.replace(part.logprobs, tokens=[], token_logprobs=[], text_offset=[])
    logprobs.top_logprobs = None if part.logprobs.top_logprobs is None else []
    extend(logprobs, part.logprobs)
    return logprobs
