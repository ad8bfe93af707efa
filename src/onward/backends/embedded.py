"""The embedded backend: plans requests, submits their jobs to engine clients, and returns deltas.

The only place where `engine` and `completions` meet. Jobs are submitted to an `EngineClient`; their events come back
through a `Delivery` per event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakValueDictionary

import msgspec

from onward.backends.answer import EmbeddedAnswer, error_of
from onward.backends.base import Admit, Health, ModelHealth, Needs, TokenizerInfo
from onward.backends.delivery import Delivery
from onward.backends.shared_engine import SharedEngine
from onward.completions.choices import ChoiceStream
from onward.completions.constraints import constraint_check, identity
from onward.completions.filters import ContentFilters
from onward.completions.limits import RequestLimits
from onward.completions.plan import Plan, ServedModel, plan
from onward.completions.rejections import InvalidConstraint, TokenOutOfRange, UnknownModel
from onward.completions.request import CompletionRequest
from onward.constraints.errors import GrammarError
from onward.constraints.process.checker import GrammarChecker, QueueFull
from onward.engine.client import EngineState
from onward.engine.model import Tokenizer
from onward.engine_load import EngineLoad
from onward.errors import ApiError, EngineStopped, Overloaded
from onward.models.registry import ListedModel
from onward.models.resolve import ResolvedModel
from onward.offload import MAX_INLINE_SIZE, inline_or_on_thread
from onward.tracing import current

ENDED_POLL_SECONDS = 0.05
"""How often to check whether the last request of a model that is no longer served has ended."""
PROMPT_OVERHEAD = 50
"""The cost of planning a prompt in addition to that of its characters, in characters."""
_model_numbers = itertools.count()


class EmbeddedModel:
    """A served model and its engine, which others may share. `fingerprint_of` makes the `system_fingerprint`
    of the engine's, which changes exactly when results may change. Used on event loops.
    """

    def __init__(
        self,
        served: ServedModel,
        engine: SharedEngine,
        fingerprint_of: Callable[[str], str] = str,
        filters: ContentFilters | None = None,
        max_wait: float = 0.0,
        found: ResolvedModel | None = None,
    ) -> None:
        """`engine` is in use for this model already. `max_wait`: seconds that a request may wait for its first job to
        be started; 0: any time. `found`: where the model is, if it is on this machine."""
        self.served = served
        self.found = found
        self.number = next(_model_numbers)
        """Of this process: another model may be served under the same id later."""
        self.shared = engine
        self._is_stopped = False
        self._stop_lock = threading.Lock()
        self.engine = self.shared.client
        self.backlog = self.shared.backlog
        self._fingerprint_of = fingerprint_of
        self.filters = filters
        self._max_wait = max_wait
        self.answers: dict[int, EmbeddedAnswer] = {}
        """The running answer of each job, by job id."""
        self._planning: set[int] = set()
        """Numbers of the requests that are not submitted yet."""
        self._deliveries: WeakValueDictionary[asyncio.AbstractEventLoop, Delivery] = WeakValueDictionary()

    def stop(self) -> None:
        """Stop the engine, or free the model's adapter where others use the engine. May be called again. Blocks."""
        with self._stop_lock:
            if not self._is_stopped:
                self.shared.leave(self.served.adapter)
                self._is_stopped = True

    @property
    def fingerprint(self) -> str:
        """The `system_fingerprint` of what is submitted now. That of a cluster changes with a rolling update."""
        return self._fingerprint_of(self.engine.info.fingerprint)

    @property
    def load(self) -> EngineLoad:
        """What the engine published last, with the rows that it has."""
        return msgspec.structs.replace(self.engine.load, max_rows=self.engine.info.max_rows)

    @property
    def _num_free_rows(self) -> int:
        return self.engine.info.max_rows - self.engine.load.num_running

    @property
    def is_idle(self) -> bool:
        """Whether no request uses the engine, or is about to."""
        return not (self._planning or self.answers)

    @contextmanager
    def planning(self, request_number: int) -> Iterator[None]:
        """Count a request that is being planned, and may be submitted within this context."""
        self._planning.add(request_number)
        try:
            yield
        finally:
            self._planning.discard(request_number)

    def check_backlog(self, client: str) -> None:
        """Raise Overloaded if no request of the client would be accepted now, whatever it contains."""
        self.backlog.check(client, self._num_free_rows)

    def submit(
        self, planned: Plan, request_number: int, client: str, refuse: Callable[[str, str], None] | None = None
    ) -> EmbeddedAnswer:
        """Submit a plan's jobs and return their answer. Called on the event loop that iterates over the answer.
        `refuse` refuses a grammar from now on, for a reason. Raises Overloaded, EngineStopped."""
        jobs = planned.jobs
        ticket = self.backlog.enter(client, jobs, self._num_free_rows)
        job_ids = [job.id for job in jobs]
        timer: asyncio.TimerHandle | None = None

        def retire(cancel: bool) -> None:
            ticket.leave()
            if timer is not None:
                timer.cancel()
            for job_id in job_ids:
                self.answers.pop(job_id, None)
                self.shared.answers.pop(job_id, None)
            if cancel:
                self.engine.cancel(request_number)

        stream = ChoiceStream(planned, self.served.tokenizer, self.filters)
        delivery = self._delivery()
        answer = EmbeddedAnswer(
            self.served.id,
            self.fingerprint,
            planned.request.used_seed,
            delivery,
            stream,
            retire,
            self.engine.cancel_choice,
            partial(error_of, planned, refuse),
            ticket,
            planned.warning,
            trace := current.get(),
        )
        for answers in (self.answers, self.shared.answers):
            answers.update(dict.fromkeys(job_ids, answer))
        try:
            if trace is not None:
                trace.submitted()
            self.engine.submit(jobs)
            answer.fingerprint = self.fingerprint  # an update may have been noticed meanwhile
        except ApiError:
            retire(False)
            raise
        if self._max_wait and not planned.request.is_background:
            timer = asyncio.get_running_loop().call_later(self._max_wait, answer.stop_waiting)
        return answer

    def _delivery(self) -> Delivery:
        """Return the running event loop's delivery, which its answers keep alive."""
        loop = asyncio.get_running_loop()
        delivery = self._deliveries.get(loop)
        if delivery is None:
            delivery = self._deliveries[loop] = Delivery(loop)
        return delivery


@dataclass(slots=True)
class EmbeddedBackend:
    """Implements `backends.base.Backend` over engine clients. Owns its models.

    `listed` is what /v1/models returns; `aliases` map further names to model ids. With `any_name` (the lenient profile)
    a single model is served under every name. `stand_ins`: names that the built-in model answers to in place of another
    one, each with what to say about it. `limits` are those of one request. `checker` checks their constraints.
    """

    served: dict[str, EmbeddedModel]
    listed: list[ListedModel]
    aliases: dict[str, str]
    limits: RequestLimits = field(default_factory=RequestLimits)
    any_name: bool = False
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    checker: GrammarChecker = field(default_factory=GrammarChecker)
    ending: dict[EmbeddedModel, asyncio.Task[None]] = field(default_factory=dict)
    """Models that are not served any more and still have requests."""
    _draining: bool = False
    _health: Health = field(default_factory=lambda: Health("ready"))
    _seen: tuple[bool, list[str], list[EngineState]] | None = None
    """Of what `_health` is the health: whether it drained, its models, and the states of their engines."""
    _request_numbers: itertools.count[int] = field(default_factory=itertools.count)
    _job_ids: itertools.count[int] = field(default_factory=itertools.count)

    def models(self) -> list[ListedModel]:
        return list(self.listed)

    async def complete(
        self, request: CompletionRequest, *, client: str = "", admit: Admit | None = None
    ) -> EmbeddedAnswer:
        if self._draining:
            raise EngineStopped()
        model = self._find(request.model)
        number = next(self._request_numbers)
        with model.planning(number):
            return await self._submit(request, model, number, client, admit)

    def use(
        self,
        served: dict[str, EmbeddedModel],
        listed: list[ListedModel],
        aliases: dict[str, str],
        stand_ins: Mapping[str, str],
    ) -> None:
        """Serve these models under these names from now on. One that is left out ends with its last request."""
        left_out = [model for model in self.served.values() if model not in served.values()]
        self.served, self.listed, self.aliases, self.stand_ins = served, listed, aliases, stand_ins
        for model in left_out:
            self.ending[model] = asyncio.create_task(self._end(model))

    async def _end(self, model: EmbeddedModel) -> None:
        while not model.is_idle:
            await asyncio.sleep(ENDED_POLL_SECONDS)
        await asyncio.to_thread(model.stop)
        del self.ending[model]

    async def _submit(
        self, request: CompletionRequest, model: EmbeddedModel, number: int, client: str, admit: Admit | None
    ) -> EmbeddedAnswer:
        model.check_backlog(client)  # before anything is tokenized for a request that cannot be accepted
        planned = await inline_or_on_thread(
            _size(request) + _waiting(model.served.tokenizer),
            lambda: plan(request, model.served, number, self._job_ids, self.limits, hash(client)),
        )
        if request.constraint is not None:
            planned = planned.constrained(await self._grammar(planned.request, model, client))
        if (stands_in := self.stand_ins.get(request.model or "")) and not planned.warning:
            planned = replace(planned, warning=stands_in)
        if admit is not None:
            await admit(_needs(planned, model))
        return model.submit(planned, number, client, self.checker.refuse)

    async def _grammar(self, request: CompletionRequest, model: EmbeddedModel, client: str) -> str:
        """Return the grammar of a request's constraint. Raises InvalidConstraint, Overloaded."""
        make = partial(constraint_check, request, model.served.references)
        try:
            ticket = self.checker.submit(client, identity(request, f"{model.served.id} {model.number}"), make)
        except QueueFull:
            raise Overloaded("Too many of your constraints wait to be checked. Retry later.") from None
        checked = asyncio.wrap_future(ticket.future)
        try:
            await asyncio.wait([checked])  # others may wait for the same one: it is not cancelled with this task
        except asyncio.CancelledError:
            checked.add_done_callback(lambda future: future.exception())
            ticket.abandon()
            raise
        try:
            return checked.result()
        except GrammarError as error:
            if self._draining:
                raise EngineStopped() from None
            raise InvalidConstraint(request.constraint or "", str(error)) from None

    async def tokenizer_info(self, model: str | None) -> TokenizerInfo:
        served = self._find(model).served
        tokenizer = served.tokenizer
        return TokenizerInfo(
            eos_token=tokenizer.eos_token,
            bos_token=tokenizer.bos_token,
            bos_token_id=_id(tokenizer, tokenizer.bos_token),
            eos_token_id=_id(tokenizer, tokenizer.eos_token),
            adds_bos=tokenizer.implicit_prefix(add_special_tokens=True) > 0,
            vocab_size=served.vocab_size,
            context_length=served.context_length,
            special_tokens=tokenizer.special_literals,
            infill=served.infill is not None,
            chat_template=tokenizer.chat_template,
        )

    async def tokenize(self, model: str | None, text: str, add_special_tokens: bool) -> list[int]:
        tokenizer = self._find(model).served.tokenizer
        return await inline_or_on_thread(
            len(text) + _waiting(tokenizer), lambda: tokenizer.encode(text, add_special_tokens=add_special_tokens)
        )

    async def token_bytes(self, model: str | None, tokens: list[int]) -> list[bytes]:
        served = self._find(model).served
        return await inline_or_on_thread(len(tokens), lambda: _token_bytes(served, tokens))

    def health(self) -> Health:
        states = [model.engine.state for model in self.served.values()]
        seen = self._draining, list(self.served), states
        if seen != self._seen:  # each request asks
            self._health = self._health_of(dict(zip(self.served, map(_model_health, states), strict=True)))
            self._seen = seen
        return self._health

    def _health_of(self, models: dict[str, ModelHealth]) -> Health:
        states = {model.state for model in models.values()}
        if "dead" in states:
            return Health("dead", "An engine has crashed; the log says why. The server must be restarted.", models)
        if self._draining:
            return Health("draining", "The server is shutting down.", models)
        if "recovering" in states:
            return Health("recovering", "An engine was lost; requests wait until it or another one is back.", models)
        return Health("ready", models=models)

    def load(self) -> dict[str, EngineLoad]:
        first = {model.shared: model_id for model_id, model in reversed(self.served.items())}
        return {
            model_id: model.load if first[model.shared] == model_id else EngineLoad()
            for model_id, model in self.served.items()
        }

    def drain(self) -> None:
        self._draining = True

    async def aclose(self) -> None:
        self._draining = True
        self.checker.close()
        await asyncio.gather(*(asyncio.to_thread(model.stop) for model in (*self.served.values(), *self.ending)))

    def close(self) -> None:
        """As `aclose`, for callers without an event loop."""
        self._draining = True
        self.checker.close()
        for model in (*self.served.values(), *self.ending):
            model.stop()

    def _find(self, name: str | None) -> EmbeddedModel:
        """Return the model of that name; the first one if there is no name (request checks decide whether it may be
        missing). Raises UnknownModel."""
        if not name or (self.any_name and len(self.served) == 1):
            return next(iter(self.served.values()))
        found = self.served.get(self.aliases.get(name, name))
        if found is None:
            raise UnknownModel(name)
        return found


def _model_health(state: EngineState) -> ModelHealth:
    match state.status:
        case "crashed":
            return ModelHealth("dead", "The engine has crashed; the log says why.")
        case "recovering":
            if state.engines is not None:  # others start them
                return ModelHealth("recovering", "No engine of this model answers; requests wait for a while.")
            return ModelHealth("recovering", "The engine was lost and is being started again.")
        case "running" | "stopped":
            counts = state.engines
            if counts is not None and counts.num_answering < counts.num_engines:
                return ModelHealth("ready", f"{counts.num_answering} of {counts.num_engines} engines answer.")
            return ModelHealth("ready")


def _needs(planned: Plan, model: EmbeddedModel) -> Needs:
    request = planned.request
    return Needs(
        model.served.id,
        model.fingerprint,
        sum(prompt.num_prompt_tokens for prompt in planned.prompts),
        sum(job.num_choices * job.max_tokens for job in planned.jobs),
        request.used_seed,
    )


def _id(tokenizer: Tokenizer, literal: str | None) -> int | None:
    return None if literal is None else tokenizer.token_id(literal)


def _token_bytes(served: ServedModel, tokens: list[int]) -> list[bytes]:
    """Return the bytes of each token. Raises TokenOutOfRange for an id outside the vocabulary."""
    for token in tokens:
        if not 0 <= token < served.vocab_size:
            raise TokenOutOfRange("tokens", token, served.vocab_size - 1)
    return [served.tokenizer.token_bytes(token) for token in tokens]


def _size(request: CompletionRequest) -> int:
    """Return the characters and ids that are tokenized and checked to plan a request."""
    per_prompt = PROMPT_OVERHEAD + len(request.suffix or "")
    return sum(map(len, request.prompts)) + per_prompt * len(request.prompts) + len(request.prediction or "")


def _waiting(tokenizer: Tokenizer) -> int:
    """Return how many characters count in addition, so that no event loop waits for a tokenizer's process."""
    return MAX_INLINE_SIZE + 1 if tokenizer.has_process else 0
