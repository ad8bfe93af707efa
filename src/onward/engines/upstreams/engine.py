"""An engine client over an upstream: a thread with an event loop on which the upstream computes every choice.

A choice that loses its upstream is resumed after the tokens that arrived, at another address of the model, or as soon
as the upstream answers again and still serves the same. Nothing is sampled again that was delivered, so nothing is
doubled or lost.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress

import msgspec

from onward.constraints.errors import GrammarError
from onward.engine.client import EngineInfo, EngineState
from onward.engine.events import Decoded, EngineFinishReason, FailureKind, Prefilled
from onward.engine.job import Job
from onward.engine.model import Tokenizer
from onward.engine_load import EngineLoad
from onward.engines.loop_client import LoopClient
from onward.engines.losses import Losses, LossPolicy
from onward.engines.upstreams.answers import check_part, check_scores
from onward.engines.upstreams.base import AnswerPart, Upstream, UpstreamError
from onward.engines.upstreams.choice import ChoiceRun, JobRun, UpstreamGrammars
from onward.engines.upstreams.pool import Address, CheckUpstream, Pool
from onward.errors import SetupError
from onward.sampling.outputs import Sampled

log = logging.getLogger("onward.engine")

POLICY = LossPolicy(max_strikes=3)
"""Requests of a choice in a row that return no token, after which it fails."""
WAIT_SECONDS = 300.0
"""How long jobs wait, by default, while no address answers. Later ones are refused until one does."""
END_SECONDS = 0.25
"""How long the end of an answer may take after its last token before its connection is closed instead."""


class UpstreamEngine(LoopClient):
    """Implements `engine.client.EngineClient`. Owns the upstreams, all of one model, which `make` creates by address on
    the engine's event loop.

    Each computes as many choices at the same time as it has slots, at most `max_rows`. `fingerprint` makes one of what
    an upstream says about itself. `wait_seconds`: how long jobs wait while none answers. Call `connect` before all
    other methods.
    """

    _is_own = False
    """See `Pool`."""

    def __init__(
        self,
        name: str,
        make: Callable[[], dict[str, Upstream]],
        tokenizer: Tokenizer,
        *,
        context_length: int | None = None,
        max_rows: int | None = None,
        fingerprint: Callable[[str], str] = lambda description: description,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        super().__init__(name)
        self._make = make
        self._tokenizer = tokenizer
        self._grammars = UpstreamGrammars(tokenizer)
        self._context_length = context_length
        self._max_rows = max_rows
        self._fingerprint = fingerprint
        self._wait_seconds = wait_seconds
        self._info: EngineInfo | None = None
        # What follows is used on the event loop only.
        self._runs: dict[int, JobRun] = {}
        """By job."""
        self._pool: Pool | None = None
        self._num_waiting = self._num_prefilled = self._num_decoded = 0
        """`load` reads these, and the pool's counts, on any thread."""

    def connect(self, check: CheckUpstream | None = None) -> None:
        """Reach the upstreams. Raises SetupError."""
        atexit.register(self.stop)
        self._thread.start()
        try:
            self._thread.run(self._connect(check))
        except UpstreamError as error:
            self.stop()
            raise SetupError(f"The engine of {self._name} cannot be used: {error}") from None

    async def _connect(self, check: CheckUpstream | None) -> None:
        self._pool = pool = Pool(
            self._name,
            self._make(),
            check,
            self._set_state,
            self._changed,
            max_slots=self._max_rows,
            wait_seconds=self._wait_seconds,
            may_return=self._may_return,
            is_own=self._is_own,
        )
        described, rows = await pool.connect()
        context_length = self._context_length or described.context_length
        if context_length > described.context_length:
            raise UpstreamError(
                f"a context of {context_length} tokens was requested, and it has {described.context_length}."
            )
        fingerprint, lacks = self._fingerprint(described.fingerprint), tuple(sorted(pool.traits.lacks))
        self._info = EngineInfo(self._tokenizer.size, context_length, rows, fingerprint, lacks)

    # Any thread.

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "connect has not returned"
        return self._info

    @property
    def load(self) -> EngineLoad:
        pool = self._pool
        found = (address.upstream.certificate for address in (() if pool is None else pool.addresses))
        return EngineLoad(
            num_running=self._num_running,
            num_waiting=self._num_waiting,
            num_steps=self._num_decoded,
            num_prefill_tokens=self._num_prefilled,
            num_decode_tokens=self._num_decoded,
            engines=None if pool is None else pool.counts,
            num_moved=0 if pool is None else pool.num_moved,
            certificates=tuple(each for each in found if each is not None),
        )

    @property
    def num_jobs(self) -> int:
        """Jobs that have not ended."""
        return len(self._runs)

    @property
    def is_given_up(self) -> bool:
        return self._pool is not None and self._pool.is_given_up

    def _post(self, jobs: list[Job]) -> None:
        self._loop.call_soon_threadsafe(self._begin, jobs)

    # The event loop.

    async def _close(self) -> None:
        self._grammars.close()
        if self._pool is not None:
            await self._pool.close()

    def _may_return(self) -> bool:
        """Whether upstreams that do not answer are known to come back, so that jobs wait for them however long."""
        return False

    def _begin(self, jobs: list[Job]) -> None:
        self._book.add(jobs)
        for job in jobs:
            run = self._runs[job.id] = JobRun(job)
            for choice in job.unfinished_choices:
                run.tasks[choice] = self._loop.create_task(self._compute(run, choice))

    async def _compute(self, run: JobRun, choice: int) -> None:
        """Compute one choice, and remove its job when it is the last."""
        self._num_waiting += 1
        try:
            await self._generate(run, choice)
        except UpstreamError as error:
            self._end_job(run, "lost" if error.is_lost else "rejected", str(error))
        except GrammarError as error:
            self._end_job(run, "constraint", str(error))
        except asyncio.CancelledError:
            pass
        except Exception as error:
            log.exception("%s: a choice failed", self._name)
            self._end_job(run, "rejected", repr(error))
        finally:
            self._num_waiting -= 1
            self._drop(run, choice)

    async def _generate(self, run: JobRun, choice: int) -> None:
        """Compute a choice until it has ended, at another address where one is lost. Raises UpstreamError, and
        GrammarError."""
        assert self._pool is not None
        constraint = await self._grammars.constraint_of(run.job)
        if run.job.id not in self._book:
            return
        pool, losses = self._pool, Losses(POLICY)
        generated = self._book.journal(run.job.id).tokens(choice)
        state = ChoiceRun(run.job, choice, self._tokenizer, pool.traits, generated, constraint)
        while True:
            address = await pool.place(run.place)
            rank = run.job.is_background, run.job.priority
            async with address.slots.slot(run.job.client, rank, run.place, run.job.weight) as has_slot:
                if not has_slot or run.place.address is not address or address.is_lost:
                    continue  # lost while this choice waited for a slot, or another one has a free one
                run.place.has_begun = True
                num_before, num_losses = len(state.generated), address.num_losses
                try:
                    with self._running():
                        await self._take_segments(run, state, address)
                    return
                except UpstreamError as error:
                    error.locate(address.url)
                    if state.keep_grammar_here() and error.is_request:
                        log.warning("%s: %s; it is asked token by token", self._name, error)
                        continue
                    pool.failed(address, num_losses, error)
                    if len(state.generated) > num_before:
                        losses.progressed()
                    else:
                        losses.lost(is_strike=pool.counts_as_attempt(error))
                    if losses.is_struck_out or not pool.may_retry(error):
                        raise
                    log.warning("%s: %s", self._name, error)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Count a choice as running, no longer as waiting."""
        self._num_waiting, self._num_running = self._num_waiting - 1, self._num_running + 1
        try:
            yield
        finally:
            self._num_waiting, self._num_running = self._num_waiting + 1, self._num_running - 1

    async def _take_segments(self, run: JobRun, state: ChoiceRun, address: Address) -> None:
        """Ask an address for segments until the choice has ended. Raises UpstreamError."""
        await self._score(run, address.upstream)
        if not run.job.max_tokens:
            self._prefilled(run, 0)
            self._record(Decoded(run.job.id, state.choice, [], "length"))
            return
        while True:
            num_before = len(state.generated)
            if await self._take_segment(run, state, address):
                return
            if len(state.generated) == num_before and not state.needs_whole:
                raise UpstreamError("the upstream ended without a token.")

    async def _score(self, run: JobRun, upstream: Upstream) -> None:
        """Score the prompt once, if the job asks for it. Raises UpstreamError."""
        if run.job.score_top is None:
            return
        async with run.scoring:
            if not self._is_prefilled(run):
                top, with_ranks = run.job.score_top, run.job.score_ranks
                scores = await upstream.score(run.job.prompt, top, with_ranks=with_ranks, salt=run.job.salt)
                check_scores(scores, run.job.prompt, top, self._tokenizer.size, with_ranks=with_ranks)
                self._prefilled(run, 0, scores)

    async def _take_segment(self, run: JobRun, state: ChoiceRun, address: Address) -> bool:
        """Take the tokens of one segment. Returns whether the choice has ended. Raises UpstreamError."""
        assert self._pool is not None
        if state.constraint is not None and state.constraint.is_unsettled:
            await self._grammars.wait_for(state.constraint)
            if finish := state.settle():
                self._record(Decoded(run.job.id, state.choice, [], finish))
                return True
        mask = self._grammars.mask_of(state.constraint)
        segment, num_before = state.next_segment(mask), len(state.generated)
        if (part := await state.sampled_here(address.upstream, segment, mask)) is not None:
            if segment.forced_token is None:
                self._pool.worked(address)
            event = await self._taken(run, state, part)
            self._record(event)
            return event.finish_reason is not None
        run.first_choice = state.choice if run.first_choice is None else run.first_choice
        num_sent, answer = 0, address.upstream.generate(segment)
        answer = run.with_grammar(answer, state) if segment.grammar else answer
        async with aclosing(answer) as parts:
            async for part in parts:
                num_sent = check_part(part, num_sent, segment, self._tokenizer.size)
                if part.is_broken:
                    state.ask_in_one_piece()
                    return False
                if not part.tokens:
                    run.note_cached(part, segment, state.choice)
                    continue
                if address.num_failures:
                    self._pool.worked(address)
                event = await self._taken(run, state, part)
                if event.finish_reason is None:
                    if event.tokens:
                        self._record(event)
                    if segment.grammar and not state.leaves_grammar:
                        return False
                    continue
                num_taken = len(state.generated) - num_before + len(event.tokens)
                if num_taken < segment.max_tokens and event.tokens[-1].token not in segment.end_tokens:
                    self._record(event)
                elif state.traits.counts_cache_last:
                    await _read_end(parts, lambda part: run.note_cached(part, segment, state.choice))
                    self._record(self._with_cached(run, event))
                else:
                    self._record(event)
                    await _read_end(parts)
                return True
        return False

    async def _taken(self, run: JobRun, state: ChoiceRun, part: AnswerPart) -> Decoded:
        """Return the event of a part, up to the token that ends the choice."""
        taken: list[Sampled] = []
        finish: EngineFinishReason | None = None
        if state.constraint is not None and state.leaves_grammar:
            taken, finish = await state.take_checked(part.tokens)
        else:
            for sampled in part.tokens:
                taken.append(sampled)
                if finish := state.take(sampled.token):
                    break
        self._prefilled(run, part.num_cached or 0)
        self._num_decoded += len(taken)
        return Decoded(run.job.id, state.choice, taken, finish, mu=state.mu)

    def _with_cached(self, run: JobRun, event: Decoded) -> Decoded:
        """Return a choice's last event; that of the job's last choice with what is known now of the cache."""
        if len(run.tasks) > 1 or not run.num_cached:
            return event
        self._num_prefilled -= run.num_cached
        return msgspec.structs.replace(event, num_cached_tokens=run.num_cached)

    def _prefilled(self, run: JobRun, num_cached: int, scores: list[Sampled | None] | None = None) -> None:
        """Deliver the job's Prefilled, once."""
        if not self._is_prefilled(run):
            self._num_prefilled += len(run.job.prompt) - num_cached
            self._record(Prefilled(run.job.id, num_cached, scores))

    def _is_prefilled(self, run: JobRun) -> bool:
        """Whether the job's Prefilled was delivered, or need not be: it has ended."""
        return run.job.id not in self._book or self._book.journal(run.job.id).is_prefilled

    def _record(self, event: Prefilled | Decoded) -> None:
        if self._book.record(event):
            self._emit((event,))

    def _end_job(self, run: JobRun, kind: FailureKind, reason: str) -> None:
        """Fail a job once, and end its other choices."""
        self._fail([run.job.id], kind, reason)
        self._remove(run)

    def _cancel(self, request: int) -> None:
        self._book.cancel(request)
        for run in [run for run in self._runs.values() if run.job.request == request]:
            self._remove(run)

    def _cancel_choice(self, job: int, choice: int) -> None:
        run = self._runs.get(job)
        if run is None or choice not in run.tasks:
            return
        self._book.cancel_choice(job, choice)
        run.tasks[choice].cancel()
        self._drop(run, choice)  # one that has not begun yet does not remove itself

    def _drop(self, run: JobRun, choice: int) -> None:
        """Remove a choice that has ended, and its job when it was the last."""
        run.tasks.pop(choice, None)
        if self._runs.get(run.job.id) is not run:
            return
        if not run.tasks:
            self._remove(run)
        elif self._pool is not None:
            self._pool.resize(run.place, len(run.tasks))

    def _remove(self, run: JobRun) -> None:
        """Remove a job that has ended, and cancel its tasks."""
        if self._runs.pop(run.job.id, None) is None:
            return
        for task in run.tasks.values():
            if task is not asyncio.current_task():
                task.cancel()
        if self._pool is not None:
            self._pool.resize(run.place, 0)

    def _changed(self, reason: str) -> None:
        """End everything: the upstream serves something else, and nothing can be resumed."""
        self._set_state(EngineState("crashed", reason))
        for run in list(self._runs.values()):
            self._end_job(run, "crashed", reason)
        self._deliver_events()


async def _read_end(
    parts: AsyncGenerator[AnswerPart], note: Callable[[AnswerPart], object] = lambda part: None
) -> None:
    """Read what follows the last token, so that the connection can be used again. If tokens follow, it cannot."""
    with suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            async for part in parts:
                if part.tokens:
                    return
                note(part)
