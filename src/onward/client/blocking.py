"""The synchronous Python API, for any thread: the asynchronous one on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from onward.api.openai.response import Chunk, Completion, Model
from onward.client.awaiting import (
    AsyncCompletions,
    AsyncModels,
    AsyncOnward,
    AsyncRawCompletions,
    AsyncStream,
    AsyncTokenizer,
    ModelPage,
    RawResponse,
)
from onward.client.parameters import CreateParams, ModelOptions
from onward.errors import EngineStopped

T = TypeVar("T")


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="onward-client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end and return its result. Ctrl-C in the calling thread cancels it.

        Raises EngineStopped after `close`, and what the coroutine raises.
        """
        with self._lock:
            if self._closed:
                coroutine.close()
                raise EngineStopped("The client is closed.")
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Accept no more coroutines, wait for those that run, end the thread. May be called more than once."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(_wait_for_other_tasks(), self._loop).result()
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _wait_for_other_tasks() -> None:
    """Wait until this loop has no other task, so that no caller in another thread waits forever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


class Stream:
    """The chunks of a streamed completion, as they arrive. Iteration may stop and continue later.

    Closing the stream, leaving its `with` block, or dropping the last reference to it cancels the request.
    """

    def __init__(self, stream: AsyncStream, loop: _LoopThread) -> None:
        self._stream = stream
        self._loop = loop

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        try:
            return self._loop.run(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def close(self) -> None:
        """Cancel the request if it is still running. May be called more than once."""
        with suppress(EngineStopped):  # closing the client has ended its streams
            self._loop.run(self._stream.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RawCompletions:
    """`client.completions.with_raw_response`: the same calls, whose results also have headers."""

    def __init__(self, completions: AsyncRawCompletions, loop: _LoopThread) -> None:
        self._completions = completions
        self._loop = loop

    @overload
    def create(
        self,
        *,
        stream: Literal[False] | None = None,
        extra_headers: Mapping[str, str] | None = None,
        **params: Unpack[CreateParams],
    ) -> RawResponse[Completion]: ...
    @overload
    def create(
        self, *, stream: Literal[True], extra_headers: Mapping[str, str] | None = None, **params: Unpack[CreateParams]
    ) -> RawResponse[Stream]: ...
    @overload
    def create(
        self, *, stream: bool | None, extra_headers: Mapping[str, str] | None = None, **params: Unpack[CreateParams]
    ) -> RawResponse[Completion | Stream]: ...

    def create(
        self,
        *,
        stream: bool | None = None,
        extra_headers: Mapping[str, str] | None = None,
        **params: Unpack[CreateParams],
    ) -> RawResponse[Completion | Stream]:
        """As `completions.create`."""
        raw = self._loop.run(self._completions.create(stream=stream, extra_headers=extra_headers, **params))
        made = raw.parse()
        return RawResponse(Stream(made, self._loop) if isinstance(made, AsyncStream) else made, raw.headers)


class Completions:
    """`client.completions`."""

    def __init__(self, completions: AsyncCompletions, loop: _LoopThread) -> None:
        self.with_raw_response = RawCompletions(completions.with_raw_response, loop)

    @overload
    def create(
        self,
        *,
        stream: Literal[False] | None = None,
        extra_headers: Mapping[str, str] | None = None,
        **params: Unpack[CreateParams],
    ) -> Completion: ...
    @overload
    def create(
        self, *, stream: Literal[True], extra_headers: Mapping[str, str] | None = None, **params: Unpack[CreateParams]
    ) -> Stream: ...
    @overload
    def create(
        self, *, stream: bool | None, extra_headers: Mapping[str, str] | None = None, **params: Unpack[CreateParams]
    ) -> Completion | Stream: ...

    def create(
        self,
        *,
        stream: bool | None = None,
        extra_headers: Mapping[str, str] | None = None,
        **params: Unpack[CreateParams],
    ) -> Completion | Stream:
        """Return a completion, or with `stream=True` a stream of its chunks.

        `extra_headers` may have `onward-seed`, that of an earlier response (`with_raw_response`): the same request then
        has the same answer. Raises InvalidRequest (an invalid parameter), ModelNotFound, Overloaded, ServerError.
        """
        raw = self.with_raw_response.create(stream=stream, extra_headers=extra_headers, **params)
        return raw.parse()


class Models:
    """`client.models`."""

    def __init__(self, models: AsyncModels, loop: _LoopThread) -> None:
        self._models = models
        self._loop = loop

    def list(self) -> ModelPage:
        """Return the names that `model` may take, to be iterated over."""
        return self._loop.run(self._load())

    async def _load(self) -> ModelPage:
        return await self._models.list()

    def retrieve(self, model: str) -> Model:
        """Return one model by its name. Raises NotFound."""
        return self._loop.run(self._models.retrieve(model))


class Tokenizer:
    """`client.tokenizer`: text to token ids and back. See AsyncTokenizer for what its methods return and raise."""

    def __init__(self, tokenizer: AsyncTokenizer, loop: _LoopThread) -> None:
        self._tokenizer = tokenizer
        self._loop = loop

    def encode(self, text: str, *, model: str | None = None, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text."""
        return self._loop.run(self._tokenizer.encode(text, model=model, add_special_tokens=add_special_tokens))

    def decode(self, tokens: Iterable[int], *, model: str | None = None) -> str:
        """Return the text of tokens."""
        return self._loop.run(self._tokenizer.decode(tokens, model=model))

    def token_bytes(self, tokens: Iterable[int], *, model: str | None = None) -> list[bytes]:
        """Return the exact bytes of each token."""
        return self._loop.run(self._tokenizer.token_bytes(tokens, model=model))


class Onward:
    """A client whose engine runs in this process: `AsyncOnward` without `await`. Thread-safe."""

    def __init__(self, model: str | Path = "storyteller", **options: Unpack[ModelOptions]) -> None:
        self._client = AsyncOnward(model, **options)
        self._loop = _LoopThread()
        self.completions = Completions(self._client.completions, self._loop)
        self.models = Models(self._client.models, self._loop)
        self.tokenizer = Tokenizer(self._client.tokenizer, self._loop)
        self._closed = False

    def close(self) -> None:
        """Cancel what is still running, stop the engine and free its memory. May be called more than once."""
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
