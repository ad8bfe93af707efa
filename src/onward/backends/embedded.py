"""The embedded backend: plans requests, runs them on engines in this process, gives their partial choices.

The only place that joins `engine` and `completions`. Jobs go down through an engine's mailbox; their events come back
by a `Delivery` per event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from onward.backends.answer import EmbeddedAnswer
from onward.backends.base import Health, Load, TokenizerInfo
from onward.backends.delivery import Delivery
from onward.completions.choices import ChoiceStream
from onward.completions.filters import ContentFilters
from onward.completions.infill import find_infill
from onward.completions.plan import Plan, ServedModel, plan
from onward.completions.reasoning import find_reasoning_markers
from onward.engine.events import Event, Failed
from onward.engine.loop import EngineThread
from onward.engine.model import Model as RuntimeModel
from onward.engine.model import Tokenizer
from onward.engine.step import Engine
from onward.errors import ApiError, EngineStopped, InvalidRequest, ModelNotFound, ServerError
from onward.protocol.models import Model
from onward.protocol.request import CompletionRequest

log = logging.getLogger("onward.backend")

LONG_PROMPT = 20_000
"""Characters (or ids) of prompt, suffix and prediction from which on planning leaves the event loop for a thread."""
EACH_PROMPT = 50
"""Characters that a prompt counts for beside its own."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`rows`: sequences evaluated together. `max_waiting`: sequences that may wait for a place.
    `max_parallel`: choices (prompts × candidates) that one request may ask for. `threads` may sample; None: a few."""

    rows: int = 64
    max_waiting: int = 1024
    max_parallel: int = 2048
    share_prefixes: bool = True
    speculate: bool = True
    threads: int | None = None


class EmbeddedModel:
    """One model with its engine thread. `fingerprint` changes exactly when its results may."""

    def __init__(
        self,
        model_id: str,
        runtime: RuntimeModel,
        tokenizer: Tokenizer,
        fingerprint: str,
        limits: Limits,
        filters: ContentFilters | None = None,
    ) -> None:
        self.filters = filters
        self.id = model_id
        self.tokenizer = tokenizer
        self.fingerprint = fingerprint
        self.served = ServedModel(
            model_id,
            tokenizer,
            runtime.vocab_size,
            runtime.context_length,
            find_infill(tokenizer),
            find_reasoning_markers(tokenizer),
        )
        self.answers: dict[int, EmbeddedAnswer] = {}
        self._deliveries: WeakValueDictionary[asyncio.AbstractEventLoop, Delivery] = WeakValueDictionary()
        self.engine = Engine(
            runtime,
            tokenizer,
            rows=limits.rows,
            share_prefixes=limits.share_prefixes,
            speculate=limits.speculate,
            threads=limits.threads,
        )
        self.thread = EngineThread(self.engine, self._deliver, max_waiting=limits.max_waiting, name=model_id)
        self.thread.start()

    def run(self, planned: Plan, number: int) -> EmbeddedAnswer:
        """Queue a plan's jobs. Raises Overloaded, EngineStopped. Called on the asking event loop."""
        job_ids = [job.id for job in planned.jobs]

        def retire(cancel: bool) -> None:
            for job_id in job_ids:
                self.answers.pop(job_id, None)
            if cancel:
                self.thread.cancel(number)

        stream = ChoiceStream(planned, self.tokenizer.token_bytes, self.filters)
        answer = EmbeddedAnswer(self.id, self.fingerprint, self._delivery(), stream, retire, self._failure)
        self.answers.update(dict.fromkeys(job_ids, answer))
        try:
            self.thread.submit(planned.jobs)
        except ApiError:
            retire(False)
            raise
        return answer

    def load(self) -> Load:
        pool, counters = self.engine.cache.pool, self.engine.counters
        return Load(
            running=len(self.engine.scheduler.running),
            waiting=self.thread.waiting,
            blocks_total=pool.count,
            blocks_used=pool.used,
            blocks_cached=pool.cached,
            preemptions=self.engine.scheduler.preemptions,
            prefill_tokens=counters.prefill_tokens,
            decode_tokens=counters.decode_tokens,
            cached_tokens=counters.cached_tokens,
            steps=counters.steps,
            drafts=dict(counters.drafts.items()),
        )

    def _delivery(self) -> Delivery:
        """That of the running event loop; its answers keep it."""
        loop = asyncio.get_running_loop()
        delivery = self._deliveries.get(loop)
        if delivery is None:
            delivery = self._deliveries[loop] = Delivery(loop)
        return delivery

    def _failure(self, failed: Failed) -> ApiError:
        if self.thread.death is not None:
            return ServerError(final=True)
        return EngineStopped()

    def _deliver(self, events: Sequence[Event]) -> None:
        """On the engine thread: hand each event loop its answers' events."""
        steps: dict[Delivery, dict[EmbeddedAnswer, list[Event]]] = {}
        for event in events:
            answer = self.answers.get(event.job)
            if answer is not None:
                steps.setdefault(answer.delivery, {}).setdefault(answer, []).append(event)
        for delivery, step in steps.items():
            delivery.post(step.items())


@dataclass(slots=True)
class EmbeddedBackend:
    """Implements `backends.base.Backend` for models in this process.

    `listed` are the names that /v1/models shows; `aliases` map further names to model ids. With `any_name`
    (the lenient profile) the only model answers to every name.
    """

    served: dict[str, EmbeddedModel]
    listed: list[Model]
    aliases: dict[str, str]
    limits: Limits
    any_name: bool = False
    _draining: bool = False
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _job_ids: itertools.count[int] = field(default_factory=itertools.count)

    def models(self) -> list[Model]:
        return list(self.listed)

    async def complete(self, request: CompletionRequest) -> EmbeddedAnswer:
        if self._draining:
            raise EngineStopped()
        model = self._find(request.model)
        number = next(self._numbers)
        if _size(request) > LONG_PROMPT:
            planned = await asyncio.to_thread(self._plan, request, model, number)
        else:
            planned = self._plan(request, model, number)
        return model.run(planned, number)

    def tokenizer_info(self, model: str | None) -> TokenizerInfo:
        served = self._find(model)
        tokenizer = served.tokenizer
        return TokenizerInfo(
            eos_token=tokenizer.eos_token,
            bos_token=tokenizer.bos_token,
            vocab_size=served.served.vocab_size,
            context_length=served.served.context_length,
            special_tokens=tokenizer.special_literals,
            infill=served.served.infill is not None,
        )

    def tokenize(self, model: str | None, text: str, add_special_tokens: bool) -> list[int]:
        return self._find(model).tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def token_bytes(self, model: str | None, tokens: list[int]) -> list[bytes]:
        served = self._find(model).served
        for token in tokens:
            if not 0 <= token < served.vocab_size:
                raise InvalidRequest(
                    f"Invalid token: {token}. Minimum value is 0, maximum value is "
                    f"{served.vocab_size - 1} (inclusive).",
                    param="tokens",
                )
        return [served.tokenizer.token_bytes(token) for token in tokens]

    def health(self) -> Health:
        for model in self.served.values():
            if model.thread.death is not None:
                return Health("dead", f"The engine of {model.id} has stopped; the log says why. Restart the server.")
        if self._draining:
            return Health("draining", "The server is shutting down.")
        return Health("ready")

    def load(self) -> dict[str, Load]:
        return {model.id: model.load() for model in self.served.values()}

    def drain(self) -> None:
        self._draining = True

    async def aclose(self) -> None:
        self._draining = True
        await asyncio.gather(*(asyncio.to_thread(model.thread.stop) for model in self.served.values()))

    def close(self) -> None:
        """As `aclose`, for callers without an event loop."""
        self._draining = True
        for model in self.served.values():
            model.thread.stop()

    def _plan(self, request: CompletionRequest, model: EmbeddedModel, number: int) -> Plan:
        return plan(request, model.served, number, self._job_ids, self.limits.max_parallel)

    def _find(self, name: str | None) -> EmbeddedModel:
        """Raises ModelNotFound. A missing name means the first model (the gate decides whether it may miss)."""
        if not name or (self.any_name and len(self.served) == 1):
            return next(iter(self.served.values()))
        found = self.served.get(self.aliases.get(name, name))
        if found is None:
            raise ModelNotFound(f"The model `{name}` does not exist or you do not have access to it.")
        return found


def _size(request: CompletionRequest) -> int:
    each = EACH_PROMPT + len(request.suffix or "")
    return sum(map(len, request.prompts)) + each * len(request.prompts) + len(request.prediction or "")
