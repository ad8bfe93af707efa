"""Dependency wiring: builds a Backend, or only a tokenizer, from Settings."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onward.compose.backend import compose, load_tokenizer

__all__ = ["compose", "load_tokenizer"]


def __getattr__(name: str) -> Any:
    """Import late: an engine's process needs other modules of this package, and none of these."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("onward.compose.backend"), name)
