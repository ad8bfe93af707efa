"""Compiled functions that numba keeps in its cache, so that they are compiled once per machine, and who hears of it.

numba reuses a cached function while the file that defines it is unchanged, whatever happens to the files that it calls.
But its cache key includes the values of closure variables: with a digest of those files among them, every change
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from zlib import crc32

from numba.core.event import Event, Listener, install_listener

from onward.sampling.vocab_blocks import compiled


def source_digest(names: Sequence[str]) -> int:
    """Return a digest of files of this folder. Raises OSError if one cannot be read."""
    folder = Path(__file__).parent
    return crc32(b"".join((folder / name).read_bytes() for name in names))


def cached(function: Callable[..., Any]) -> Any:
    """Return `function` compiled, from the cache if it is there. Where numba finds no folder to write to, each process
    compiles for itself."""
    try:
        return compiled(cache=True)(function)
    except RuntimeError:
        return compiled()(function)


class _CompilationListener(Listener):
    """Calls `notify` when numba starts to compile a function; loading one from its cache is not compiling."""

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify: Callable[[], None] | None = notify

    def on_start(self, event: Event) -> None:
        notify, self._notify = self._notify, None
        if notify is not None:
            notify()

    def on_end(self, event: Event) -> None:
        pass


def on_compilation(notify: Callable[[], None]) -> AbstractContextManager[object]:
    """Return a context within which `notify` is called once if kernels are compiled rather than loaded from the cache.

    `notify` is called when the compilation starts, on the thread that compiles.
    """
    return install_listener("numba:compile", _CompilationListener(notify))
