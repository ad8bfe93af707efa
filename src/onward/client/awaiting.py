"""The asynchronous Python API. Runs on the caller's event loop."""

from __future__ import annotations

import logging
import weakref
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, overload

from onward.api.openai.decode import check_request
from onward.api.openai.errors import openai_words
from onward.api.openai.reply import fold_chunks, fold_whole
from onward.api.openai.response import Chunk, Completion, Model, ModelList
from onward.api.openai.routes import model_object
from onward.api.seed import SEED_HEADER, with_seed_header
from onward.backends.base import Backend
from onward.client.parameters import CreateParams, ModelOptions
from onward.completions.answer import Answer
from onward.completions.request import CompletionRequest
from onward.compose import compose
from onward.errors import InvalidRequest, NotFound, RequestCancelled
from onward.settings import resolve

log = logging.getLogger("onward.client")

T = TypeVar("T", covariant=True)


class AsyncStream:
    """The chunks of a streamed completion, as they arrive. Iteration may stop and continue later.

    Closing the stream, leaving its `async with` block, or dropping the last reference to it cancels the request, even
    before the first chunk: at that point the generator below has not started and could not clean up.
    """

    def __init__(self, answer: Answer, request: CompletionRequest) -> None:
        self._answer = answer
        self._chunks = _each_chunk(answer, request)
        weakref.finalize(self, answer.abandon).atexit = False  # at exit, the engine cancels it

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    async def close(self) -> None:
        """Cancel the request if it is still running. May be called more than once."""
        await self._answer.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def _each_chunk(answer: Answer, request: CompletionRequest) -> AsyncIterator[Chunk]:
    """Yield an answer's chunks. Holds no reference to the stream: a cycle would delay its finalizer."""
    try:
        async for chunks in fold_chunks(answer, request):
            for chunk in chunks:
                yield chunk
    except RequestCancelled:
        return  # closed by another task or thread
    finally:
        await answer.aclose()


class RawResponse(Generic[T]):
    """What `with_raw_response.create` returns: a completion or a stream by `parse()`, and the `headers` that a server
    would have sent with it, of which there is one here: `onward-seed`, for a request without a seed."""

    def __init__(self, parsed: T, headers: dict[str, str]) -> None:
        self.headers = headers
        self._parsed = parsed

    def parse(self) -> T:
        return self._parsed


class AsyncRawCompletions:
    """`client.completions.with_raw_response`: the same calls, whose results also have headers."""

    def __init__(self, backend: Backend, default_model: str) -> None:
        self._backend = backend
        self._default_model = default_model

    @overload
    async def create(
        self,
        *,
        stream: Literal[False] | None = None,
        extra_headers: Mapping[str, str] | None = None,
        **params: Unpack[CreateParams],
    ) -> RawResponse[Completion]: ...
    @overload
    async def create(
        self, *, stream: Literal[True], extra_headers: Mapping[str, str] | None = None, **params: Unpack[CreateParams]
    ) -> RawResponse[AsyncStream]: ...
    @overload
    async def create(
        self, *, stream: bool | None, extra_headers: Mapping[str, str] | None = None, **params: Unpack[CreateParams]
    ) -> RawResponse[Completion | AsyncStream]: ...

    async def create(
        self,
        *,
        stream: bool | None = None,
        extra_headers: Mapping[str, str] | None = None,
        **params: Unpack[CreateParams],
    ) -> RawResponse[Completion | AsyncStream]:
        """As `completions.create`."""
        fields: dict[str, object] = {**params, "model": params.get("model") or self._default_model}
        if stream is not None:
            fields["stream"] = stream
        request = with_seed_header(check_request(fields, profile="default"), _seed_in(extra_headers or {}))
        with openai_words():
            answer = await self._backend.complete(request)
        headers = {SEED_HEADER: str(answer.seed)} if request.seed is None else {}
        if request.stream:
            return RawResponse(AsyncStream(answer, request), headers)
        try:
            return RawResponse(await fold_whole(answer, request), headers)
        finally:
            await answer.aclose()


def _seed_in(headers: Mapping[str, str]) -> str | None:
    """Return the only header that means something without a server. Raises InvalidRequest for others."""
    given = {name.lower(): value for name, value in headers.items()}
    if unknown := given.keys() - {SEED_HEADER}:
        raise InvalidRequest(
            f"extra_headers has {', '.join(sorted(unknown))}: in this process there is only the header {SEED_HEADER}."
        )
    return str(given[SEED_HEADER]) if SEED_HEADER in given else None


class AsyncCompletions:
    """`client.completions`."""

    def __init__(self, backend: Backend, default_model: str) -> None:
        self.with_raw_response = AsyncRawCompletions(backend, default_model)

    @overload
    async def create(
        self,
        *,
        stream: Literal[False] | None = None,
        extra_headers: Mapping[str, str] | None = None,
        **params: Unpack[CreateParams],
    ) -> Completion: ...
    @overload
    async def create(
        self, *, stream: Literal[True], extra_headers: Mapping[str, str] | None = None, **params: Unpack[CreateParams]
    ) -> AsyncStream: ...
    @overload
    async def create(
        self, *, stream: bool | None, extra_headers: Mapping[str, str] | None = None, **params: Unpack[CreateParams]
    ) -> Completion | AsyncStream: ...

    async def create(
        self,
        *,
        stream: bool | None = None,
        extra_headers: Mapping[str, str] | None = None,
        **params: Unpack[CreateParams],
    ) -> Completion | AsyncStream:
        """Return a completion, or with `stream=True` a stream of its chunks.

        `extra_headers` may have `onward-seed`, that of an earlier response (`with_raw_response`): the same request then
        has the same answer. Raises InvalidRequest (an invalid parameter), ModelNotFound, Overloaded, ServerError.
        """
        raw = await self.with_raw_response.create(stream=stream, extra_headers=extra_headers, **params)
        return raw.parse()


class ModelPage(ModelList, kw_only=True):
    """The names that `model` may take. Iterable like the openai package's pages; `data` has them as a list."""

    def __iter__(self) -> Iterator[Model]:
        return iter(self.data)

    async def __aiter__(self) -> AsyncIterator[Model]:
        for model in self.data:
            yield model


class AsyncModelList:
    """What `AsyncModels.list` returns: await it for a page, or iterate over the models with `async for`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __await__(self) -> Generator[Any, None, ModelPage]:
        return self._load().__await__()

    async def __aiter__(self) -> AsyncIterator[Model]:
        for model in await self:
            yield model

    async def _load(self) -> ModelPage:
        return ModelPage(data=list(map(model_object, self._backend.models())))


class AsyncModels:
    """`client.models`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def list(self) -> AsyncModelList:
        """Return the names that `model` may take, to be awaited or iterated over."""
        return AsyncModelList(self._backend)

    async def retrieve(self, model: str) -> Model:
        """Return one model by its name. Raises NotFound."""
        for each in self._backend.models():
            if each.id == model:
                return model_object(each)
        raise NotFound(f"The model '{model}' does not exist", param="model", code="model_not_found")


class AsyncTokenizer:
    """`client.tokenizer`: text to token ids and back, for the client's model or another one that it serves."""

    def __init__(self, backend: Backend, default_model: str) -> None:
        self._backend = backend
        self._default_model = default_model

    async def encode(self, text: str, *, model: str | None = None, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text: those that a completion of this prompt begins with.

        Special tokens that are spelled in the text are recognised; `add_special_tokens=False` leaves out those that
        the model expects at the beginning of a text, such as `<s>`. Raises ModelNotFound.
        """
        with openai_words():
            return await self._backend.tokenize(model or self._default_model, text, add_special_tokens)

    async def decode(self, tokens: Iterable[int], *, model: str | None = None) -> str:
        """Return the text of tokens, with U+FFFD for incomplete characters.

        Raises InvalidRequest for an id outside the vocabulary, ModelNotFound.
        """
        return b"".join(await self.token_bytes(tokens, model=model)).decode("utf-8", "replace")

    async def token_bytes(self, tokens: Iterable[int], *, model: str | None = None) -> list[bytes]:
        """Return the exact bytes of each token, which may be part of a character. Raises as `decode` does."""
        with openai_words():
            return await self._backend.token_bytes(model or self._default_model, [*tokens])


class AsyncOnward:
    """A client whose engine runs in this process. The constructor loads the model, and blocks while it does.

    `model` is the name of a built-in model, a folder with a model, or a hub id. Raises SetupError if it cannot be
    loaded. Close the client, or use it as a context manager, to free its memory.
    """

    def __init__(self, model: str | Path = "storyteller", **options: Unpack[ModelOptions]) -> None:
        self._backend = compose(resolve(keywords={"model": str(model), **options}, limits_found_file=True).settings)
        default_model = self._backend.models()[0].id
        self.completions = AsyncCompletions(self._backend, default_model)
        self.tokenizer = AsyncTokenizer(self._backend, default_model)
        self.models = AsyncModels(self._backend)

    async def close(self) -> None:
        """Cancel what is still running, stop the engine and free its memory. May be called more than once."""
        await self._backend.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
