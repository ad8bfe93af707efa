"""The Python API for callers that await, on their own event loop."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, Self, Unpack, overload

from onward.backends.base import Backend
from onward.client.parameters import CreateParams, ModelOptions
from onward.completions.answer import Answer
from onward.completions.fold import fold_chunks, fold_whole
from onward.compose import compose
from onward.errors import NotFound, RequestCancelled
from onward.protocol.decode import check_request
from onward.protocol.models import Model, ModelList
from onward.protocol.request import CompletionRequest
from onward.protocol.response import Chunk, Completion
from onward.settings import resolve


class AsyncStream:
    """The chunks of a streamed completion, as they come; who stops reading may go on later.

    Closing it, leaving its `async with`, or dropping it cancels what still runs: dropping it even before its first
    chunk, when its generator has not begun and would clean up nothing.
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
