"""The one exception tree. Status, type and code belong to the class; `param` and the words to the instance.

OnwardError
├── SetupError                     a start that cannot work: says what to do, never travels over HTTP
│   ├── ModelFolderError           a folder that is no model, a broken IR, a tokenizer that does not fit
│   ├── ModelNameError             a name that is neither built in, nor a folder, nor on the hub
│   │   └── HubUnreachable         no network, and the model is not in the local cache
│   └── MemoryTooSmall             the KV cache could not hold one sequence
├── ApiError                       an answer to a client: status, type, param, code (spec/completions §11)
│   ├── InvalidRequest        400
│   │   ├── UnreadableBody
│   │   └── UnsupportedContentType
│   ├── AuthenticationFailed  401
│   ├── NotFound              404
│   │   ├── ModelNotFound
│   │   └── UnknownUrl
│   ├── MethodNotAllowed      405
│   ├── BodyTimeout           408
│   ├── RequestTooLarge       413
│   ├── HeadTooLarge          431
│   ├── ServerError           500
│   └── Overloaded            503
│       └── EngineStopped     503  the engine is dead, draining or not ready
└── RequestCancelled               the asker went away; nobody is left to be told
"""

from __future__ import annotations

from typing import ClassVar

NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's SDKs obey it (spec/wire-rules 21)."""


class OnwardError(Exception):
    """Root of every error that Onward raises on purpose."""


class SetupError(OnwardError):
    """The program cannot start as asked. The message is one sentence that says what to do."""


class ModelFolderError(SetupError):
    """A model folder lacks a file, holds a broken one, or its parts do not belong together."""


class ModelNameError(SetupError):
    """A model name leads nowhere."""


class HubUnreachable(ModelNameError):
    """Whether the hub has a model of that name cannot be told: no connection, or one that broke."""


class MemoryTooSmall(SetupError):
    """The KV cache that fits into memory could not hold a single useful sequence."""


class ApiError(OnwardError):
    """An error that a client of the API is told, in OpenAI's envelope.

    `param` names the request field at fault, or is None. `headers` go with the HTTP answer.
    """

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code
        self.headers = headers or {}


class InvalidRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class UnreadableBody(InvalidRequest):
    """The body is not JSON."""


class UnsupportedContentType(InvalidRequest):
    code = "unsupported_content_type"


class AuthenticationFailed(ApiError):
    status = 401
    type = "invalid_request_error"


class NotFound(ApiError):
    status = 404
    type = "invalid_request_error"


class ModelNotFound(NotFound):
    code = "model_not_found"


class UnknownUrl(NotFound):
    pass


class MethodNotAllowed(ApiError):
    status = 405
    type = "invalid_request_error"


class BodyTimeout(ApiError):
    """The rest of a request's body did not come."""

    status = 408
    type = "invalid_request_error"


class RequestTooLarge(ApiError):
    status = 413
    type = "invalid_request_error"


class HeadTooLarge(ApiError):
    """The URL and headers of a request are longer than this server reads (RFC 6585)."""

    status = 431
    type = "invalid_request_error"


class ServerError(ApiError):
    """Something broke on our side. The words are OpenAI's (spec/completions §11). `final`: asking again is in vain."""

    WORDS: ClassVar[str] = "The server had an error while processing your request. Sorry about that!"

    def __init__(self, message: str = WORDS, *, final: bool = False) -> None:
        super().__init__(message, headers=dict(NO_RETRY) if final else None)


class Overloaded(ApiError):
    """The queue is full. `retry_after` is in seconds and travels as the Retry-After header."""

    status = 503
    type = "server_error"
    WORDS: ClassVar[str] = (
        "That model is currently overloaded with other requests. You can retry your request, "
        "or contact us through our help center at help.openai.com if the error persists."
    )

    def __init__(self, message: str = WORDS, *, retry_after: int = 1) -> None:
        super().__init__(message, headers={"retry-after": str(retry_after)})


class EngineStopped(Overloaded):
    """The engine takes no more work: it is draining, or it died (`final`: asking again is in vain). Told to present
    and future requests."""

    WORDS: ClassVar[str] = "Onward is shutting down."

    def __init__(self, message: str = WORDS, *, final: bool = False) -> None:
        super().__init__(message)
        if final:
            self.headers = dict(NO_RETRY)


class RequestCancelled(OnwardError):
    """The request was cancelled by its asker before it ended."""
