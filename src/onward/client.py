"""The Python API: `openai.OpenAI().completions`, answered by an engine in this process.

    with onward.Onward(model="storyteller") as client:
        completion = client.completions.create(prompt="Once upon a time", max_tokens=32)
        print(completion.choices[0].text)

`Onward` blocks, `AsyncOnward` awaits; calls, parameters and results are the same. Bad parameters raise
`onward.errors.InvalidRequest` and its kin, which carry OpenAI's `message`, `type`, `param` and `code`.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar, Unpack, overload

from onward.backends.base import Backend
from onward.completions.answer import Answer
from onward.completions.fold import fold_chunks, fold_whole
from onward.compose import compose
from onward.errors import EngineStopped, NotFound, RequestCancelled
from onward.protocol.decode import check_request
from onward.protocol.models import Model, ModelList
from onward.protocol.request import CompletionRequest
from onward.protocol.response import Chunk, Completion
from onward.settings import resolve

T = TypeVar("T")


class StreamOptions(TypedDict, total=False):
    include_usage: bool
    include_obfuscation: bool
    continuous_usage_stats: bool


class PredictionPart(TypedDict):
    type: Literal["text"]
    text: str


class Prediction(TypedDict):
    type: Literal["content"]
    content: str | list[PredictionPart]


class CreateParams(TypedDict, total=False):
    """Parameters of `completions.create`, as `onward.protocol.parameters` declares them (a test compares)."""

    model: str | None
    prompt: str | list[str] | list[int] | list[list[int]] | None
    best_of: int | None
    echo: bool | None
    frequency_penalty: float | None
    logit_bias: dict[str, float] | None
    logprobs: int | None
    max_tokens: int | None
    n: int | None
    presence_penalty: float | None
    seed: int | None
    stop: str | list[str] | None
    stream_options: StreamOptions | None
    suffix: str | None
    temperature: float | None
    top_p: float | None
    user: str | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    min_tokens: int | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    include_stop_str_in_output: bool | None
    return_tokens_as_token_ids: bool | None
    max_completion_tokens: int | None
    add_special_tokens: bool | None
    prediction: Prediction | None


class ModelOptions(TypedDict, total=False):
    """How the engine is set up; what is left out comes from `ONWARD_*`, `onward.toml` and the defaults."""

    context_length: int
    kv_memory: int | str | None
    max_parallel: int
    max_rows: int
    max_waiting: int
    precision: Literal["fast", "exact"]
    prefix_cache: bool
    speculation: Literal["auto", "off"]
    threads: int


class AsyncStream:
    """The chunks of a streamed completion, as they come. Leaving it early cancels what still runs.

    So does dropping it, even before its first chunk, when its generator has not begun and would clean up nothing.
    """

    def __init__(self, answer: Answer, request: CompletionRequest) -> None:
        self._answer = answer
        self._chunks = _each_chunk(answer, request)
        weakref.finalize(self, answer.abandon).atexit = False  # the engine's own end cancels what runs then

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    async def close(self) -> None:
        """Cancel what still runs. May be called more than once."""
        await self._answer.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _each_chunk(answer: Answer, request: CompletionRequest) -> AsyncIterator[Chunk]:
    """Knows nothing of the stream: one that is dropped goes at once, not when the collector finds a circle."""
    try:
        async for chunks in fold_chunks(answer, request):
            for chunk in chunks:
                yield chunk
    except RequestCancelled:
        return  # closed from elsewhere
    finally:
        await answer.aclose()


class AsyncCompletions:
    def __init__(self, backend: Backend, default_model: str) -> None:
        self._backend = backend
        self._default_model = default_model

    @overload
    async def create(self, *, stream: Literal[False] | None = None, **params: Unpack[CreateParams]) -> Completion: ...
    @overload
    async def create(self, *, stream: Literal[True], **params: Unpack[CreateParams]) -> AsyncStream: ...
    @overload
    async def create(self, *, stream: bool, **params: Unpack[CreateParams]) -> Completion | AsyncStream: ...

    async def create(self, *, stream: bool | None = None, **params: Unpack[CreateParams]) -> Completion | AsyncStream:
        """Create a completion; with `stream=True` give its chunks as they come.

        Raises InvalidRequest (a bad parameter), ModelNotFound, Overloaded, ServerError.
        """
        fields: dict[str, object] = {**params, "model": params.get("model") or self._default_model}
        if stream is not None:
            fields["stream"] = stream
        request = check_request(fields, profile="default")
        answer = await self._backend.complete(request)
        if request.stream:
            return AsyncStream(answer, request)
        try:
            return await fold_whole(answer)
        finally:
            await answer.aclose()


class AsyncModels:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def list(self) -> ModelList:
        """The names that `model` may take."""
        return ModelList(data=self._backend.models())

    async def retrieve(self, model: str) -> Model:
        """One model by its name. Raises NotFound."""
        for each in self._backend.models():
            if each.id == model:
                return each
        raise NotFound(f"The model '{model}' does not exist", param="model", code="model_not_found")


class AsyncOnward:
    """Loads a model when made (a fraction of a second for the built-in one) and answers in this process.

    `model` is a built-in name, a folder with an OpenVINO IR, or a hub id. Raises SetupError when it cannot be
    loaded. Close it, or use it as a context manager, to free the memory.
    """

    def __init__(self, model: str | Path = "storyteller", **options: Unpack[ModelOptions]) -> None:
        self._backend = compose(resolve(keywords={"model": str(model), **options}).settings)
        self.completions = AsyncCompletions(self._backend, self._backend.models()[0].id)
        self.models = AsyncModels(self._backend)

    async def close(self) -> None:
        await self._backend.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _LoopThread:
    """An event loop in a thread of its own, for callers that block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="onward-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run to the end and give the result; an interrupt (Ctrl-C) cancels the work.

        Raises EngineStopped after `close`.
        """
        with self._lock:
            if self._closed:
                work.close()
                raise EngineStopped("The client is closed.")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Take nothing more, wait for what runs, end the thread. May be called more than once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_others_ended(), self._loop).result()
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _others_ended() -> None:
    """Wait until no other task of this loop is left, so that no caller in another thread waits for ever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class Stream:
    """The chunks of a streamed completion, as they come. Leaving it early cancels what still runs."""

    def __init__(self, stream: AsyncStream, loop: _LoopThread) -> None:
        self._stream = stream
        self._loop = loop

    def __iter__(self) -> Iterator[Chunk]:
        try:
            while True:
                yield next(self)
        except StopIteration:
            return
        finally:
            self.close()

    def __next__(self) -> Chunk:
        try:
            return self._loop.run(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Cancel what still runs. May be called more than once."""
        with suppress(EngineStopped):  # a closed client has ended its streams
            self._loop.run(self._stream.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Completions:
    def __init__(self, completions: AsyncCompletions, loop: _LoopThread) -> None:
        self._completions = completions
        self._loop = loop

    @overload
    def create(self, *, stream: Literal[False] | None = None, **params: Unpack[CreateParams]) -> Completion: ...
    @overload
    def create(self, *, stream: Literal[True], **params: Unpack[CreateParams]) -> Stream: ...
    @overload
    def create(self, *, stream: bool, **params: Unpack[CreateParams]) -> Completion | Stream: ...

    def create(self, *, stream: bool | None = None, **params: Unpack[CreateParams]) -> Completion | Stream:
        """Create a completion; with `stream=True` give its chunks as they come.

        Raises InvalidRequest (a bad parameter), ModelNotFound, Overloaded, ServerError.
        """
        made = self._loop.run(self._completions.create(stream=bool(stream), **params))
        return Stream(made, self._loop) if isinstance(made, AsyncStream) else made


class Models:
    def __init__(self, models: AsyncModels, loop: _LoopThread) -> None:
        self._models = models
        self._loop = loop

    def list(self) -> ModelList:
        """The names that `model` may take."""
        return self._loop.run(self._models.list())

    def retrieve(self, model: str) -> Model:
        """One model by its name. Raises NotFound."""
        return self._loop.run(self._models.retrieve(model))


class Onward:
    """`AsyncOnward` for callers that block. May be used from several threads."""

    def __init__(self, model: str | Path = "storyteller", **options: Unpack[ModelOptions]) -> None:
        self._client = AsyncOnward(model, **options)
        self._loop = _LoopThread()
        self.completions = Completions(self._client.completions, self._loop)
        self.models = Models(self._client.models, self._loop)
        self._closed = False

    def close(self) -> None:
        """End what still runs and free the memory. May be called more than once."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._client.close())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
