"""The 404 of unknown URLs, with advice for clients that call another API than completions."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from onward.errors import ApiError, UnknownUrl

MIN_SIMILARITY = 0.8
"""difflib's ratio of two paths from which one may be a typing error for the other."""
_ROOTS = ("/openai/v1/", "/v1/", "/")
"""Where clients look for OpenAI's APIs, most specific first."""
_PROMPT_INSTEAD_OF = {
    "chat/completions": "messages",
    "messages": "messages",
    "responses": "input",
    "edits": "input",
}
"""Paths of APIs that generate text → the field that `prompt` replaces."""
_OTHER_APIS = {
    "assistants", "audio", "batches", "containers", "conversations", "embeddings", "evals", "files", "fine_tuning",
    "images", "moderations", "realtime", "rerank", "score", "threads", "uploads", "vector_stores", "videos",
}  # fmt: skip
"""First segments of the paths of APIs that have no equivalent here."""


def unknown_url(method: str, path: str, known: Iterable[str] = ()) -> ApiError:
    """Return a 404 in the words of the layer of OpenAI's service that would respond (behaviour §11). `known`: the paths
    of which one may have been meant."""
    advice = _advice(path) or _near(path, known)
    if path.startswith(("/v1/", "/openai/")):
        return UnknownUrl(f"Invalid URL ({method} {path})" + (f". {advice}" if advice else ""))
    advice = advice or "Please check the URL for typos, or see the docs at /docs."
    return UnknownUrl(f"Unknown request URL: {method} {path}. {advice}", code="unknown_url")


def _advice(path: str) -> str:
    """Return what to do instead of calling another API, or an empty string."""
    root = next((root for root in _ROOTS if path.startswith(root)), "")
    api = path.removeprefix(root).rstrip("/")
    if field := _PROMPT_INSTEAD_OF.get(api):
        base_url = "must end in /v1" if root == "/" else "stays the same"
        return (
            f"This server implements the Completions API only. Send POST {_completions_url(root)} with `prompt` "
            f"instead of `{field}`; the client's base URL {base_url}."
        )
    if api.partition("/")[0] in _OTHER_APIS:
        return (
            f"This server implements the Completions API only (POST {_completions_url(root)} with `prompt`); "
            "see the docs at /docs."
        )
    return ""


def _near(path: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(path, list(known), n=1, cutoff=MIN_SIMILARITY) if len(path) < 128 else []
    return f"Did you mean {near[0]}?" if near else ""


def _completions_url(root: str) -> str:
    return ("/v1/" if root == "/" else root) + "completions"
