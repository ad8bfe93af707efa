"""The errors of one API: how it words what `completions` rejects, and the shapes of its error responses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onward.api.openai.errors import error_event, error_response, openai_error
from onward.errors import ApiError, RequestRejected, ServerError


@dataclass(frozen=True, slots=True)
class ErrorWords:
    """The errors of one API, by default OpenAI's.

    `say` returns the error of a request that cannot be completed; `body` returns status, body and content type of an
    error response; `event` returns the end of a stream that fails after it has begun.
    """

    say: Callable[[RequestRejected], ApiError] = openai_error
    body: Callable[[ApiError], tuple[int, bytes, str]] = error_response
    event: Callable[[ApiError], bytes] = error_event


OPENAI_ERRORS = ErrorWords()


def api_error(exception: BaseException, words: ErrorWords = OPENAI_ERRORS) -> ApiError:
    """Return the error to send to a client.

    What is not meant for clients becomes a ServerError with OpenAI's message, and is its `__cause__` for the log.
    """
    if isinstance(exception, ApiError):
        return exception
    if isinstance(exception, RequestRejected):
        return words.say(exception)
    error = ServerError()
    error.__cause__ = exception
    return error
