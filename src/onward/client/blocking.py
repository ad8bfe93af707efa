"""The Python API for callers that block, from any thread: `awaiting`, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from onward.client.awaiting import AsyncCompletions, AsyncModels, AsyncOnward, AsyncStream
from onward.client.parameters import CreateParams, ModelOptions
from onward.errors import EngineStopped
from onward.protocol.models import Model, ModelList
from onward.protocol.response import Chunk, Completion

T = TypeVar("T")


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
    """The chunks of a streamed completion, as they come; who stops reading may go on later.

    Closing it, leaving its `with`, or dropping it cancels what still runs.
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
