"""Convert exceptions to API errors and send them as responses."""

from __future__ import annotations

import logging

from onward.api.errors import OPENAI_ERRORS, ErrorWords, api_error
from onward.errors import ApiError, Overloaded
from onward.server.exchange import Exchange

log = logging.getLogger("onward.server")


def convert_error(exception: Exception, request_id: str, words: ErrorWords = OPENAI_ERRORS) -> ApiError:
    """Return the error to send to the client, in the words of its API. Internal errors are logged with a traceback and
    the request's id."""
    error = api_error(exception, words)
    if error.status >= 500 and not isinstance(error, Overloaded):
        log.error("request %s failed: %s", request_id, exception, exc_info=exception)
    return error


async def send_error(exchange: Exchange, error: ApiError) -> None:
    """Send the error as a whole response, with its headers."""
    status, body, content_type = exchange.words.body(error)
    exchange.headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await exchange.respond(status, body, content_type)
