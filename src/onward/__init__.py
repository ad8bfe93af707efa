"""OpenAI's legacy Completions API, complete, on a model of your own.

Importing the package is cheap: its public names are loaded on first use.
"""

TYPE_CHECKING = False  # type checkers know this name; importing typing costs more than the rest of this module
if TYPE_CHECKING:
    from typing import Any

    from onward import errors
    from onward.client import AsyncOnward, Onward

    __version__: str

__all__ = ["AsyncOnward", "Onward", "__version__", "errors"]


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from importlib.metadata import version

        globals()[name] = found = version("onward")  # which reads and parses a file
        return found
    if name == "errors":
        from importlib import import_module

        return import_module("onward.errors")
    if name in ("Onward", "AsyncOnward"):
        from onward import client

        return getattr(client, name)
    raise AttributeError(f"module 'onward' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
