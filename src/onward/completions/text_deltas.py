"""Sampled tokens become text: one choice's events in, text deltas out, each with the records that belong to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onward.engine.events import Decoded, EngineFinishReason
from onward.engine.job import Job
from onward.engine.model import Vocabulary
from onward.protocol.response import FinishReason
from onward.sampling.outputs import Sampled
from onward.text.assembler import Assembler, TokenRecord


@dataclass(slots=True)
class TextDelta:
    """Part of one choice: text that can be emitted now and the records that belong to it, either possibly empty.

    `num_completion_tokens` counts the choice's completion tokens so far. `finish_reason` is set on the choice's last
    delta.
    """

    job: int
    choice: int
    text: str
    records: list[TokenRecord]
    num_completion_tokens: int
    finish_reason: FinishReason | None


class ChoiceText:
    """Assembles the text of one choice. Not thread-safe.

    Decides by the tokens alone where the choice ends, so engines that cannot find stop strings serve as well as those
    that can: after `finished`, further tokens of the choice are ignored. `text_base` is the number of code points
    before the completion.
    """

    def __init__(self, job: Job, choice: int, vocabulary: Vocabulary, text_base: int = 0) -> None:
        self._job = job
        self._choice = choice
        self._vocabulary = vocabulary
        self._assembler = Assembler(job.rules, text_base, job.pending)
        self.finished = False

    def feed(self, event: Decoded) -> Iterator[TextDelta]:
        """Yield a delta per token of an event, or one without text where the event has no token."""
        last = len(event.tokens) - 1
        for index, sampled in enumerate(event.tokens):
            if self.finished:
                return
            yield self._take(sampled, event.finish_reason if index == last else None)
        if not event.tokens and event.finish_reason and not self.finished:
            delta = self._assembler.flush()
            yield self._delta(delta.text, delta.records, event.finish_reason)

    def _take(self, sampled: Sampled, finish: EngineFinishReason | None) -> TextDelta:
        """`finish`: why the engine generates nothing after this token, None if it goes on."""
        token, assembler = sampled.token, self._assembler
        record = TokenRecord(token, self._vocabulary.token_bytes(token), sampled.logprob, sampled.top)
        if token in self._job.end_tokens:
            delta = assembler.flush(record)
            return self._delta(delta.text, delta.records, "stop")
        delta = assembler.feed(record, special=self._vocabulary.is_special(token))
        if assembler.stopped:
            return self._delta(delta.text, delta.records, "stop")
        if finish is None:
            return self._delta(delta.text, delta.records, None)
        rest = assembler.flush()
        return self._delta(delta.text + rest.text, delta.records + rest.records, finish)

    def _delta(self, text: str, records: list[TokenRecord], finish: EngineFinishReason | None) -> TextDelta:
        self.finished = finish is not None
        num_tokens = self._assembler.num_completion_tokens
        return TextDelta(self._job.id, self._choice, text, records, num_tokens, finish)
