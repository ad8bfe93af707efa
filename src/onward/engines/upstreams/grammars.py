"""Grammars of choices that an upstream computes: used in disposable processes, beside the event loop."""

from __future__ import annotations

import asyncio
from functools import partial

from onward.constraints.choice import ChoiceConstraint
from onward.constraints.grammars import Grammars
from onward.constraints.process.masks import RemoteGrammars
from onward.engine.job import Job
from onward.engine.model import Tokenizer
from onward.fair_pool import FairPool
from onward.sampling.masks import Mask


class UpstreamGrammars:
    """The grammars of one model. Its coroutines may run at the same time, on one event loop. From the first grammar on
    it owns processes and threads that wait for them; `close` ends them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._remote = RemoteGrammars(tokenizer.size, tokenizer)
        self._grammars = Grammars(self._remote.compile)
        self._threads = FairPool("onward-grammars", max_threads=2, max_per_owner=1)

    async def constraint_of(self, job: Job) -> ChoiceConstraint | None:
        """Return a constraint for one choice before its first token, None for a job without a grammar. Raises
        GrammarError."""
        if not job.grammar:
            return None
        compile = partial(self._grammars.compiled, job.grammar, job.end_tokens)
        compiled = await asyncio.wrap_future(self._threads.submit(str(job.client), compile))
        return compiled.begin()

    @staticmethod
    async def wait_for(constraint: ChoiceConstraint) -> None:
        """Wait until the constraint can be settled."""
        if constraint.pending is not None:
            await asyncio.wait([asyncio.wrap_future(constraint.pending)])

    @staticmethod
    def mask_of(constraint: ChoiceConstraint | None) -> Mask | None:
        """Return what may come next, None if anything. The constraint is settled."""
        if constraint is None:
            return None
        known = constraint.known_masks(1)
        mask: Mask = (constraint.first if known is None else known)[0]
        return mask

    def close(self) -> None:
        """End the processes and the threads without waiting for them."""
        self._threads.close()
        self._remote.close()
