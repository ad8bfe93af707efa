"""The errors of text-generation-inference (ErrorResponse in router/src/lib.rs, statuses in infer/mod.rs)."""

from __future__ import annotations

import msgspec

from onward.errors import ApiError, EngineStopped, InvalidRequest, Overloaded
from onward.protocol.error_body import MAX_FIELD_CHARS


def error_object(error: ApiError) -> dict[str, str]:
    """Return error and error_type."""
    message = error.message[:MAX_FIELD_CHARS]
    match error:
        case InvalidRequest():
            return {"error": f"Input validation error: {message}", "error_type": "validation"}
        case EngineStopped():
            return {"error": message, "error_type": "unhealthy"}
        case Overloaded():
            return {"error": message, "error_type": "overloaded"}
    return {"error": message, "error_type": "generation" if error.status >= 500 else "request"}


def error_body(error: ApiError) -> tuple[int, bytes, str]:
    """Return status, body and content type. Where there is no room the status is 429, which has Retry-After."""
    status = error.status
    if isinstance(error, InvalidRequest):
        status = 422
    elif isinstance(error, Overloaded) and not isinstance(error, EngineStopped):
        status = 429
    elif status == 500:
        status = 424
    return status, msgspec.json.encode(error_object(error)), "application/json"
