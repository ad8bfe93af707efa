"""Converts the sampled tokens of a choice to text deltas with their records."""

from __future__ import annotations

import msgspec

from onward.completions.answer import Finish, alternatives_of
from onward.engine.events import Decoded, EngineFinishReason
from onward.engine.job import Job
from onward.engine.model import Vocabulary
from onward.sampling.outputs import Sampled
from onward.text.assembler import Assembler, TokenRecord


class TextDelta(msgspec.Struct):
    """Part of one choice: text that can be emitted now and the records that belong to it, either possibly empty.

    `num_completion_tokens` counts the choice's completion tokens so far. `finish` is set on the choice's last delta.
    """

    job: int
    choice: int
    text: str
    records: list[TokenRecord]
    num_completion_tokens: int
    finish: Finish | None


class ChoiceText:
    """Assembles the text of one choice. Not thread-safe.

    Where the choice ends depends on its tokens alone, so that an engine need not search for stop strings: once the
    choice is `finished`, further tokens are ignored. `text_base` is the number of code points before the completion.
    """

    def __init__(self, job: Job, choice: int, vocabulary: Vocabulary, text_base: int = 0) -> None:
        self._job = job
        self._choice = choice
        self._vocabulary = vocabulary
        self._assembler = Assembler(job.rules, text_base, job.pending)
        self.finished = False

    def feed(self, event: Decoded) -> list[TextDelta]:
        """Return one delta per token; an event without tokens has one if it ends the choice."""
        tokens, finish = event.tokens, event.finish_reason
        if self.finished:
            return []
        if len(tokens) == 1:
            return [self._take(tokens[0], finish)]
        deltas: list[TextDelta] = []
        for index, sampled in enumerate(tokens, 1):
            deltas.append(self._take(sampled, finish if index == len(tokens) else None))
            if self.finished:
                break
        if not tokens and finish:
            delta = self._assembler.flush()
            deltas.append(self._delta(delta.text, delta.records, Finish(finish)))
        return deltas

    def _take(self, sampled: Sampled, finish: EngineFinishReason | None) -> TextDelta:
        """Return the delta of one token. `finish` is set if the engine generates no further tokens."""
        token, assembler = sampled.token, self._assembler
        alternatives = alternatives_of(sampled.top, self._vocabulary.token_bytes) if sampled.top else ()
        record = TokenRecord(token, self._vocabulary.token_bytes(token), sampled.logprob, alternatives)
        if token in self._job.end_tokens:
            delta = assembler.flush(record)
            return self._delta(delta.text, delta.records, Finish("stop", token))
        delta = assembler.feed(record, special=self._vocabulary.is_special(token))
        if assembler.stopped:
            return self._delta(delta.text, delta.records, Finish("stop", assembler.stop))
        if finish is None:
            return self._delta(delta.text, delta.records, None)
        rest = assembler.flush()
        return self._delta(delta.text + rest.text, delta.records + rest.records, Finish(finish))

    def _delta(self, text: str, records: list[TokenRecord], finish: Finish | None) -> TextDelta:
        self.finished = finish is not None
        num_tokens = self._assembler.num_completion_tokens
        return TextDelta(self._job.id, self._choice, text, records, num_tokens, finish)
