"""Grammars of choices that an upstream computes: compiled, and their masks computed, beside the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from onward.constraints.choice import ChoiceConstraint
from onward.constraints.errors import GrammarError
from onward.constraints.grammars import Grammars
from onward.constraints.matcher import MaskBuffer
from onward.constraints.tokens import library_tokens
from onward.engine.job import Job
from onward.engine.model import Tokenizer
from onward.sampling.masks import Mask


class UpstreamGrammars:
    """The grammars of one model. Its coroutines may run at the same time, on one event loop. From the first grammar on
    it owns a thread that compiles and one that computes masks, which do not wait for each other; `close` ends them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._grammars = Grammars(lambda: library_tokens(tokenizer.size, tokenizer, tokenizer))
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="onward-grammars")
        self._masks = ThreadPoolExecutor(1, thread_name_prefix="onward-masks")
        self._buffer: MaskBuffer | None = None
        """Used on the thread of `_masks` only."""

    async def constraint_of(self, job: Job) -> ChoiceConstraint | None:
        """Return a constraint for one choice before its first token, None for a job without a grammar. Raises
        GrammarError."""
        if not job.grammar:
            return None
        loop = asyncio.get_running_loop()
        compiled = await loop.run_in_executor(self._compiler, self._grammars.compiled, job.grammar, job.end_tokens)
        return ChoiceConstraint(compiled)

    async def mask_of(self, constraint: ChoiceConstraint | None) -> Mask | None:
        """Return what may come next, None if anything. Raises GrammarError."""
        if constraint is None:
            return None
        mask = await asyncio.get_running_loop().run_in_executor(self._masks, self._compute, constraint)
        if error := constraint.matcher.error:
            raise GrammarError(error)
        return mask

    def close(self) -> None:
        """End the threads without waiting for them."""
        for executor in (self._compiler, self._masks):
            executor.shutdown(wait=False, cancel_futures=True)

    def _compute(self, constraint: ChoiceConstraint) -> Mask:
        if self._buffer is None:
            self._buffer = MaskBuffer(self._grammars.trie)
        [masks] = self._buffer.compute([(constraint.matcher, [], constraint.compiled.ends)])
        mask: Mask = masks[0]
        return mask.copy()
