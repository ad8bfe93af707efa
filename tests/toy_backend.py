"""The embedded backend over the toy model, called as the server calls it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypedDict, TypeVar, Unpack

import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.errors import openai_words
from onward.api.openai.reply import fold_chunks, fold_whole
from onward.api.openai.response import Chunk, Completion
from onward.backends.backlog import Backlog
from onward.backends.embedded import EmbeddedBackend, EmbeddedModel
from onward.backends.shared_engine import SharedEngine
from onward.completions.filters import ContentFilters
from onward.completions.plan import ServedModel
from onward.engine.client import EngineClient
from onward.engine.pacing import StepCost
from onward.engine.step import Engine
from onward.engine.thread import EngineThread
from onward.model_files.toy import ToyTokenizer
from onward.models.registry import ListedModel
from onward.runtimes.toy.model import ToyModel
from onward.sampling.sampler import Sampler
from tests.waiting import until

T = TypeVar("T")


class BackendOptions(TypedDict, total=False):
    """Keyword arguments of `make_backend`."""

    max_waiting: int
    max_wait: float
    max_rows: int
    speculate: bool
    in_disposable_process: bool


def make_backend(
    *,
    max_waiting: int = 1024,
    max_wait: float = 0.0,
    max_rows: int = 64,
    speculate: bool = True,
    in_disposable_process: bool = False,
) -> EmbeddedBackend:
    model, tokenizer = ToyModel(), ToyTokenizer()
    sampler = Sampler(model.vocab_size)
    engine = Engine(
        model,
        tokenizer,
        sampler,
        max_rows=max_rows,
        speculate=speculate,
        load_tokenizer=lambda: tokenizer,
        in_disposable_process=in_disposable_process,
    )
    served = ServedModel.create("toy", tokenizer, model.vocab_size, model.context_length)
    client = EngineThread(engine, fingerprint="fp_toy")
    return backend_of(client, served, backlog=Backlog(max_waiting), max_wait=max_wait, aliases=("gpt-old",))


def backend_of(
    client: EngineClient,
    served: ServedModel,
    *,
    filters: ContentFilters | None = None,
    backlog: Backlog | None = None,
    max_wait: float = 0.0,
    aliases: tuple[str, ...] = (),
) -> EmbeddedBackend:
    """A backend with one model, and an engine that no other model uses."""
    shared = SharedEngine(client, backlog)
    shared.use()
    model = EmbeddedModel(served, shared, filters=filters, max_wait=max_wait)
    listed = [ListedModel(id=name, created=1, owned_by="onward") for name in (served.id, *aliases)]
    return EmbeddedBackend({served.id: model}, listed, dict.fromkeys(aliases, served.id))


def engine_thread(model: EmbeddedModel) -> EngineThread:
    """The client of a model's engine, for tests that look inside the thread."""
    assert isinstance(model.engine, EngineThread)
    return model.engine


def toy_engine(backend: EmbeddedBackend) -> Engine:
    return engine_thread(backend.served["toy"]).engine


def let_steps_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all steps count as equally long, and rows as known to cost nothing: drafts always pay, and do not depend on
    how busy the machine is."""
    observe = StepCost.observe

    def observe_a_second(cost: StepCost, num_prompt_tokens: int, num_rows: int, seconds: float) -> None:
        cost._most_row.begin(1e-3)
        cost._most_first_row.begin(1e-3)
        observe(cost, num_prompt_tokens, num_rows, 1.0)

    monkeypatch.setattr(StepCost, "observe", observe_a_second)


@asynccontextmanager
async def running(backend: EmbeddedBackend) -> AsyncIterator[EmbeddedBackend]:
    """Check at the end that no block and no answer is left (law 4), and close the backend."""
    try:
        yield backend
        await settle(backend)
    finally:
        await backend.aclose()


async def settle(backend: EmbeddedBackend) -> None:
    """Wait until the engines are idle, then check that they hold no block and no answer is running."""
    for model in backend.served.values():
        thread = engine_thread(model)
        await until(lambda thread=thread: thread.engine.idle and not thread.num_waiting, "an idle engine")  # type: ignore[misc]
        thread.engine.check()
        assert thread.engine.cache.pool.num_used == 0
        assert not model.answers


async def complete(backend: EmbeddedBackend, **fields: Any) -> Completion:
    request = check_request({"model": "toy", **fields})
    with openai_words():
        return await fold_whole(await backend.complete(request), request)


async def stream(backend: EmbeddedBackend, **fields: Any) -> list[Chunk]:
    request = check_request({"model": "toy", "stream": True, **fields})
    with openai_words():
        answer = await backend.complete(request)
    return [chunk async for chunks in fold_chunks(answer, request) for chunk in chunks]


def on_toy(test: Callable[[EmbeddedBackend], Coroutine[Any, Any, T]], **options: Unpack[BackendOptions]) -> T:
    """Run an async test with a new backend, from a synchronous test."""

    async def run() -> T:
        async with running(make_backend(**options)) as backend:
            return await test(backend)

    return asyncio.run(run())


def ask(**fields: Any) -> Completion:
    """One whole completion of a new backend."""
    return on_toy(lambda backend: complete(backend, **fields))


def ask_stream(**fields: Any) -> list[Chunk]:
    return on_toy(lambda backend: stream(backend, **fields))
