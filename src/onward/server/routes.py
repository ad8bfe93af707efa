"""The routing table: from method and URL to a handler, or to a 404 or 405 in OpenAI's words."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from onward.api.routes import Route
from onward.errors import ApiError, MethodNotAllowed, UnknownUrl

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
    "assistants", "audio", "containers", "conversations", "embeddings", "evals", "fine_tuning", "images",
    "moderations", "realtime", "rerank", "score", "threads", "uploads", "vector_stores", "videos",
}  # fmt: skip
"""First segments of the paths of APIs that have no equivalent here."""


def unknown_url(method: str, path: str, known: Collection[str] = ()) -> ApiError:
    """Return a 404 in the words of the layer of OpenAI's service that would respond (behaviour §11). `known`: the paths
    of which one may have been meant."""
    advice = _advice(path, known) or _near(path, known)
    if path.startswith(("/v1/", "/openai/")):
        return UnknownUrl(f"Invalid URL ({method} {path})" + (f". {advice}" if advice else ""))
    advice = advice or "Please check the URL for typos, or see the docs at /docs."
    return UnknownUrl(f"Unknown request URL: {method} {path}. {advice}", code="unknown_url")


def _advice(path: str, known: Collection[str]) -> str:
    """Return what to do instead of calling another API, or an empty string."""
    if path == "/api/chat" and "/api/generate" in known:  # Ollama's
        return (
            "This server completes text and has no chat. Send POST /api/generate with `prompt` instead of `messages`."
        )
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


def _near(path: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(path, list(known), n=1, cutoff=MIN_SIMILARITY) if len(path) < 128 else []
    return f"Did you mean {near[0]}?" if near else ""


def _completions_url(root: str) -> str:
    return ("/v1/" if root == "/" else root) + "completions"


Owned = tuple[object, Route]
"""A route, and the object whose method its handler is."""


class Routes:
    """Finds the route of a request among those of several owners. Paths may contain one `{id}`, whose value may contain
    slashes."""

    def __init__(self, routes: Iterable[tuple[object, Iterable[Route]]]) -> None:
        self._exact: dict[str, dict[str, Owned]] = {}
        self._patterns: list[tuple[str, str, dict[str, Owned]]] = []
        for owner, owned in routes:
            for route in owned:
                self._methods_of(route.path)[route.method] = owner, route

    def _methods_of(self, template: str) -> dict[str, Owned]:
        if "{id}" not in template:
            return self._exact.setdefault(template, {})
        prefix, _, suffix = template.partition("{id}")
        for known_prefix, known_suffix, methods in self._patterns:
            if (known_prefix, known_suffix) == (prefix, suffix):
                return methods
        self._patterns.append((prefix, suffix, {}))
        self._patterns.sort(key=lambda pattern: -len(pattern[1]))  # the most specific first
        return self._methods_of(template)

    def find(self, method: str, path: str) -> tuple[Owned, str | None]:
        """Return the route with its owner, and the value of `{id}`. Raises UnknownUrl or MethodNotAllowed."""
        methods, name = self._match(path)
        if not methods:
            raise unknown_url(method, path, self._exact)
        owned = methods.get("GET" if method == "HEAD" else method)
        if owned is None:
            raise method_not_allowed(method, path, methods)
        return owned, name

    def _match(self, path: str) -> tuple[dict[str, Owned], str | None]:
        if methods := self._exact.get(path):
            return methods, None
        for prefix, suffix, methods in self._patterns:
            if path.startswith(prefix) and path.endswith(suffix) and len(path) > len(prefix) + len(suffix):
                return methods, path[len(prefix) : len(path) - len(suffix)]
        return {}, None

    def allowed_methods(self, path: str) -> str:
        """Return the value of the Allow header for this path."""
        return _allowed(self._match(path)[0])


def _allowed(methods: Iterable[str]) -> str:
    known = {*methods, "OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
    return ", ".join(sorted(known))


def method_not_allowed(method: str, path: str, methods: Iterable[str]) -> ApiError:
    """Return a 405 in OpenAI's words (behaviour §11)."""
    headers = {"allow": _allowed(methods)}
    if list(methods) == ["POST"] and path.endswith("/completions"):
        return MethodNotAllowed("Only POST requests are accepted.", code="method_not_supported", headers=headers)
    return MethodNotAllowed(
        f"Not allowed to {method} on {path}. (HINT: Perhaps you meant to use a different HTTP method?)",
        headers=headers,
    )
