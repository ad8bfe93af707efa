"""From any exception to what the client is told and what the log keeps."""

from __future__ import annotations

import logging

from onward.errors import ApiError, Overloaded
from onward.protocol.error_body import error_envelope, to_api_error
from onward.server.exchange import Exchange

log = logging.getLogger("onward.server")


def as_told(problem: Exception, exchange: Exchange) -> ApiError:
    """The error to tell the client. A failure of ours is logged with its traceback and the request's id."""
    error = to_api_error(problem)
    if error.status >= 500 and not isinstance(error, Overloaded):
        log.error("request %s failed: %s", exchange.id, problem, exc_info=problem)
    return error


async def answer_error(exchange: Exchange, error: ApiError) -> None:
    """Send the error as the whole answer."""
    body, content_type = error_envelope(error)
    exchange.headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    await exchange.answer(error.status, body, content_type)
