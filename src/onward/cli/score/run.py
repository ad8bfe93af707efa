"""Scores all texts of an input, several at a time, and writes the results in the order of the input."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.cli.score.scoring import Options, Scorer, bits_per_byte, perplexity, record_of
from onward.cli.score.texts import Text
from onward.cli.source.base import Source

CONCURRENCY = 16
"""Texts that are scored at the same time: enough to fill an engine's steps; Ctrl-C loses only these."""


@dataclass(slots=True)
class Totals:
    """Sums over texts. `logprob` is natural, added in the order of the input."""

    num_texts: int = 0
    num_tokens: int = 0
    num_bytes: int = 0
    logprob: float = 0.0
    dropped: list[str] = field(default_factory=list)
    """Ids of texts whose context did not fit whole."""

    def add(self, record: dict[str, Any]) -> None:
        """Add the record of a text."""
        self.num_texts += 1
        self.num_tokens += record["num_tokens"]
        self.num_bytes += record["num_bytes"]
        self.logprob += record["logprob"]
        if record.get("dropped_context_tokens"):
            self.dropped.append(record["id"])

    def document(self) -> dict[str, Any]:
        """Return the sums as a result document."""
        return {
            "num_texts": self.num_texts,
            "num_tokens": self.num_tokens,
            "num_bytes": self.num_bytes,
            "logprob": self.logprob,
            "bits_per_byte": bits_per_byte(self.logprob, self.num_bytes) if self.num_bytes else None,
            "perplexity": perplexity(self.logprob, self.num_tokens) if self.num_tokens else None,
        }


async def score_texts(
    source: Source, texts: Sequence[Text], options: Options, write: Callable[[dict[str, Any]], None]
) -> None:
    """Score texts, pass each record to `write`, in order, and close the source. Raises what fails first."""
    running: deque[asyncio.Task[dict[str, Any]]] = deque()
    try:
        scorer = Scorer(source, await source.tokenizer_facts(options.model), options)

        async def record(text: Text) -> dict[str, Any]:
            return record_of(text, await scorer.score(text))

        for text in texts:
            running.append(asyncio.create_task(record(text)))
            if len(running) >= CONCURRENCY:
                write(await running.popleft())
        while running:
            write(await running.popleft())
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await source.aclose()
