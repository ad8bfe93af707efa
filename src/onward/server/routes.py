"""The routing table: from method and URL to a handler."""

from __future__ import annotations

from collections.abc import Iterable

from onward.api.routes import Route
from onward.errors import ApiError, MethodNotAllowed
from onward.server.unknown_url import unknown_url

Owned = tuple[object, Route]
"""A route, and what its handler is a method of."""


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
