"""The APIs of other servers that are served in addition to OpenAI's, by the names that the setting `dialects` has."""

from __future__ import annotations

from importlib import import_module

from onward.api.routes import Route
from onward.settings import declared

DIALECTS: dict[str, tuple[Route, ...]] = {
    name: import_module(f"onward.api.{name.replace('-', '_')}").ROUTES for name in declared.DIALECTS
}
"""The routes of each, which are its module's."""


def served_dialects(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dialects that a setting of `all`, `none` or names stands for. `none` wins."""
    if "none" in names:
        return ()
    return tuple(name for name in DIALECTS if name in names or "all" in names)
