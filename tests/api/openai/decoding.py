"""From an HTTP body to a request, as the server decodes it."""

from __future__ import annotations

from onward.api.body import decode_object
from onward.api.openai.decode import check_request
from onward.api.parameter import Profile
from onward.completions.request import CompletionRequest


def decode_request(body: bytes, *, profile: Profile = "default", path_model: str | None = None) -> CompletionRequest:
    """Raises InvalidRequest. `path_model` is the model named in the URL, or None."""
    return check_request(decode_object(body), profile=profile, path_model=path_model)
