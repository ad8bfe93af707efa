"""Grammars of choices that an upstream computes: used in a disposable process, beside the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from onward.constraints.choice import ChoiceConstraint
from onward.constraints.grammars import Grammars
from onward.constraints.process.masks import RemoteGrammars
from onward.engine.job import Job
from onward.engine.model import Tokenizer
from onward.sampling.masks import Mask


class UpstreamGrammars:
    """The grammars of one model. Its coroutines may run at the same time, on one event loop. From the first grammar on
    it owns a process and two threads that wait for it; `close` ends them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._remote = RemoteGrammars(tokenizer.size, tokenizer)
        self._grammars = Grammars(self._remote.compile)
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="onward-grammars")

    async def constraint_of(self, job: Job) -> ChoiceConstraint | None:
        """Return a constraint for one choice before its first token, None for a job without a grammar. Raises
        GrammarError."""
        if not job.grammar:
            return None
        loop = asyncio.get_running_loop()
        compiled = await loop.run_in_executor(self._compiler, self._grammars.compiled, job.grammar, job.end_tokens)
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
        """End the process and the threads without waiting for them."""
        self._compiler.shutdown(wait=False, cancel_futures=True)
        self._remote.close()
