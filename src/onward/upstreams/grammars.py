"""Grammars of choices that an upstream computes: masks are computed here, on other threads than the event loop."""

from __future__ import annotations

import asyncio
from threading import Lock

from onward.constraints.choice import ChoiceConstraint
from onward.constraints.grammar import GrammarError
from onward.constraints.grammars import Grammars
from onward.constraints.matcher import MaskBuffer
from onward.constraints.tokens import library_tokens
from onward.engine.job import Job
from onward.engine.model import Tokenizer
from onward.sampling.masks import Mask


class UpstreamGrammars:
    """The grammars of one model. Its coroutines may run at the same time."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._grammars = Grammars(lambda: library_tokens(tokenizer.size, tokenizer, tokenizer))
        self._lock = Lock()
        """Guards `_buffer`."""
        self._buffer: MaskBuffer | None = None

    async def constraint_of(self, job: Job) -> ChoiceConstraint | None:
        """Return a constraint for one choice before its first token, None for a job without a grammar. Raises
        GrammarError."""
        if not job.grammar:
            return None
        return ChoiceConstraint(await asyncio.to_thread(self._grammars.compiled, job.grammar, job.end_tokens))

    async def mask_of(self, constraint: ChoiceConstraint | None) -> Mask | None:
        """Return what may come next, None if anything. Raises GrammarError."""
        if constraint is None:
            return None
        mask = await asyncio.to_thread(self._compute, constraint)
        if error := constraint.matcher.error:
            raise GrammarError(error)
        return mask

    def _compute(self, constraint: ChoiceConstraint) -> Mask:
        with self._lock:
            if self._buffer is None:
                self._buffer = MaskBuffer(self._grammars.trie)
            [masks] = self._buffer.compute([(constraint.matcher, [], constraint.compiled.ends)])
            mask: Mask = masks[0]
            return mask.copy()
