"""The exception tree. Status, type and code belong to the class; `param` and the message to the instance.

OnwardError
├── SetupError                     the program cannot start as configured; never sent over HTTP
│   ├── ModelFolderError           not a model folder, a broken IR, or a tokenizer that does not match
│   │   └── CheckpointError        a GGUF file that is broken, or contains what cannot be computed
│   ├── ModelNameError             a name that is neither built in, nor a folder, nor on the hub
│   │   └── HubUnreachable         no connection, and the model is not in the local cache
│   └── MemoryTooSmall             the KV cache cannot hold one sequence
├── RequestRejected                why a request cannot be completed, as a fact; APIs say it in their words
│   └── TextNotEncodable           the model's tokenizer cannot encode a text
├── ApiError                       an error response: status, type, param, code (behaviour §11)
│   ├── InvalidRequest        400
│   │   ├── UnreadableBody
│   │   └── UnsupportedContentType
│   ├── AuthenticationFailed  401
│   ├── Forbidden             403
│   ├── NotFound              404
│   │   ├── ModelNotFound
│   │   └── UnknownUrl
│   ├── MethodNotAllowed      405
│   ├── BodyTimeout           408
│   ├── RequestTooLarge       413
│   ├── UnsupportedEncoding   415
│   ├── HeadTooLarge          431
│   ├── RateLimited           429
│   ├── ServerError           500
│   └── Overloaded            503
│       └── EngineStopped     503  the engine has crashed, is draining, is lost, or is not ready
└── RequestCancelled               the client has disconnected; no response is sent
"""

from __future__ import annotations

from typing import ClassVar, Self

NO_RETRY = {"x-should-retry": "false"}
"""The header by which OpenAI's SDKs do not retry (behaviour W21)."""


class OnwardError(Exception):
    """Base class of all errors that Onward raises itself."""


class SetupError(OnwardError):
    """The program cannot start as configured. The message is a sentence that says what is wrong and what to do."""


class ModelFolderError(SetupError):
    """A model folder lacks a file, contains an invalid one, or its files do not match each other."""


class CheckpointError(ModelFolderError):
    """A model file is broken, or has an architecture, a type or a tokenizer that cannot be computed."""


class ModelNameError(SetupError):
    """A model name is neither built in, nor a folder, nor a model on the hub."""


class HubUnreachable(ModelNameError):
    """The hub could not be reached: there is no connection, or it was lost."""


class MemoryTooSmall(SetupError):
    """The KV cache that fits in memory cannot hold a single sequence."""


class RequestRejected(OnwardError):
    """A fact about a request that cannot be completed as it is: it has no status and no words. Each API has its own for
    it (`completions.rejections` has the facts)."""


class TextNotEncodable(RequestRejected):
    """The model's tokenizer cannot encode a text. The argument is the reason."""


class ApiError(OnwardError):
    """An error response of the API, in OpenAI's envelope.

    `param` is the name of the invalid request field, or None. `headers` are added to the HTTP response.
    """

    status: ClassVar[int] = 500
    type: str = "server_error"
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
    """The request is invalid: a field has a wrong type or value, or the model does not support it."""

    status = 400
    type = "invalid_request_error"


class UnreadableBody(InvalidRequest):
    """The body is not JSON."""


class UnsupportedContentType(InvalidRequest):
    """The Content-Type of the body is not JSON."""

    code = "unsupported_content_type"


class AuthenticationFailed(ApiError):
    """The API key is missing or incorrect."""

    status = 401
    type = "invalid_request_error"


class Forbidden(ApiError):
    """The request comes from a web page, or names a host, that this server does not serve."""

    status = 403
    type = "invalid_request_error"


class NotFound(ApiError):
    """The requested object does not exist."""

    status = 404
    type = "invalid_request_error"


class ModelNotFound(NotFound):
    """No model of this name is served."""

    code = "model_not_found"


class UnknownUrl(NotFound):
    """No route has this URL."""


class MethodNotAllowed(ApiError):
    """The route does not support this HTTP method."""

    status = 405
    type = "invalid_request_error"


class BodyTimeout(ApiError):
    """The rest of a request body did not arrive in time."""

    status = 408
    type = "invalid_request_error"


class RequestTooLarge(ApiError):
    """The body exceeds the limit of the server."""

    status = 413
    type = "invalid_request_error"


class UnsupportedEncoding(ApiError):
    """The body is compressed (RFC 9110 §15.5.16)."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_content_encoding"


class HeadTooLarge(ApiError):
    """The request line and headers exceed the limit (RFC 6585)."""

    status = 431
    type = "invalid_request_error"


class RateLimited(ApiError):
    """A limit was reached: of a key, or of wrong keys from an address. `headers` say when to retry, or not to."""

    status = 429
    type = "invalid_request_error"
    code = "rate_limit_exceeded"

    def __init__(
        self, message: str, *, headers: dict[str, str], type: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, code=code, headers=headers)
        if type is not None:
            self.type = type


class ServerError(ApiError):
    """An internal error, with OpenAI's message (behaviour §11). `final`: a retry cannot succeed."""

    DEFAULT_MESSAGE: ClassVar[str] = "The server had an error while processing your request. Sorry about that!"

    def __init__(self, message: str = DEFAULT_MESSAGE, *, final: bool = False) -> None:
        super().__init__(message, headers=dict(NO_RETRY) if final else None)


class Overloaded(ApiError):
    """The waiting queue is full. `retry_after` is in seconds and is sent as the Retry-After header."""

    status = 503
    type = "server_error"
    DEFAULT_MESSAGE: ClassVar[str] = (
        "That model is currently overloaded with other requests. You can retry your request, "
        "or contact us through our help center at help.openai.com if the error persists."
    )

    def __init__(self, message: str = DEFAULT_MESSAGE, *, retry_after: int = 1) -> None:
        super().__init__(message, headers={"retry-after": str(retry_after)})


class EngineStopped(Overloaded):
    """The engine accepts no requests: it is draining, it is lost, or it has crashed (`final`: a retry cannot succeed).

    Raised for running and for new requests.
    """

    DEFAULT_MESSAGE: ClassVar[str] = "Onward is shutting down."

    def __init__(self, message: str = DEFAULT_MESSAGE, *, final: bool = False) -> None:
        super().__init__(message)
        if final:
            self.headers = dict(NO_RETRY)

    @classmethod
    def crashed(cls) -> Self:
        """Return the error of an engine that has crashed for good."""
        return cls("The engine has stopped after an internal error; the server must be restarted.", final=True)

    @classmethod
    def lost(cls) -> Self:
        """Return the error of an engine on another machine or of another server that was lost, and may come back."""
        return cls("The engine of this model was lost and does not answer. Retry your request later.")


class RequestCancelled(OnwardError):
    """The client cancelled the request before it finished."""
