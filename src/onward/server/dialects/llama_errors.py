"""llama.cpp's error objects (format_error_response in tools/server/server-common.cpp)."""

from __future__ import annotations

import msgspec

from onward.errors import ApiError
from onward.protocol.error_body import MAX_FIELD_CHARS

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}


def error_object(error: ApiError) -> dict[str, object]:
    """Return code, message and type."""
    kind = _TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return {"code": error.status, "message": error.message[:MAX_FIELD_CHARS], "type": kind}


def error_body(error: ApiError) -> tuple[int, bytes, str]:
    """Return status, body and content type."""
    return error.status, msgspec.json.encode({"error": error_object(error)}), "application/json; charset=utf-8"
