"""The routing table: from method and URL to a handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from onward.api.errors import OPENAI_ERRORS, ErrorWords
from onward.errors import ApiError, MethodNotAllowed
from onward.server.exchange import Exchange
from onward.server.unknown_url import unknown_url

Handler = Callable[[Exchange, str | None], Awaitable[None]]
"""Handles an exchange. The string is the value of `{id}` in the route's template, if there is one."""


@dataclass(frozen=True, slots=True)
class Route:
    """One URL and one method. `public`: needs no key. `words` has its errors."""

    method: str
    template: str
    handler: Handler
    public: bool = False
    words: ErrorWords = OPENAI_ERRORS


class Routes:
    """Finds the route of a request. Templates may contain one `{id}`, whose value may contain slashes."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._patterns: list[tuple[str, str, dict[str, Route]]] = []
        for route in routes:
            self._methods_of(route.template)[route.method] = route

    def _methods_of(self, template: str) -> dict[str, Route]:
        if "{id}" not in template:
            return self._exact.setdefault(template, {})
        prefix, _, suffix = template.partition("{id}")
        for known_prefix, known_suffix, methods in self._patterns:
            if (known_prefix, known_suffix) == (prefix, suffix):
                return methods
        self._patterns.append((prefix, suffix, {}))
        self._patterns.sort(key=lambda pattern: -len(pattern[1]))  # the most specific first
        return self._methods_of(template)

    def find(self, method: str, path: str) -> tuple[Route, str | None]:
        """Return the route and the value of `{id}`. Raises UnknownUrl or MethodNotAllowed."""
        methods, name = self._match(path)
        if not methods:
            raise unknown_url(method, path, self._exact)
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            raise method_not_allowed(method, path, methods)
        return route, name

    def _match(self, path: str) -> tuple[dict[str, Route], str | None]:
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
