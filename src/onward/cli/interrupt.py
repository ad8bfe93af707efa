"""Ctrl-C: by default it ends the process at once, without a message, with exit code 130.

In effect from the first lines of a command, so this module imports nothing slow. `onward serve` replaces it with its
own signal handling when the server starts; commands that save their progress use `raise_on_interrupt`.
"""

import _signal as signal  # type: ignore[import-not-found]  # `signal` takes 4 ms, in which Ctrl-C is a traceback
import _thread
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, TypeVar

    T = TypeVar("T")

EXIT_CODE = 130
_CLEAR_LINE = b"\r\x1b[K"
"""Erases a progress line and the `^C` that the terminal echoes."""

progress_line = _thread.allocate_lock()
"""Held by a thread that writes a progress line, so that none appears after the last one was cleared."""
_MAX_WAIT_SECONDS = 0.2
_exiting = _thread.allocate_lock()
_exit_output = _CLEAR_LINE
_pipe: tuple[int, int] | None = None
_is_installed = False
_cancel: "Callable[[], None] | None" = None
"""Cancels what `run` runs."""
_ignored = 0
"""Interrupts that the watching thread leaves to the main thread."""


def install_handler() -> None:
    """End the process on SIGINT as soon as Python code runs on the main thread. Call this on the main thread.

    Opens no descriptor, so it may be called while standard streams are closed.
    """
    global _is_installed, _ignored
    _is_installed, _ignored = True, 0
    signal.signal(signal.SIGINT, lambda number, frame: _exit())


def exit_on_interrupt() -> None:
    """End the process at once on SIGINT. Call this on the main thread.

    A Python signal handler has to wait while native code runs on the main thread, such as the compilation of a model.
    A second thread does not: a signal wakes it through a pipe.
    """
    global _pipe
    install_handler()
    if sys.platform == "win32":  # the event loop needs the only wakeup descriptor
        return
    if _pipe is None:
        _pipe = os.pipe()
        os.set_blocking(_pipe[1], False)
        _thread.start_new_thread(_watch, (_pipe[0],))
    signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)


def raise_on_interrupt() -> None:
    """Raise KeyboardInterrupt on the main thread on the first SIGINT; a second one ends the process at once.

    Without effect unless `exit_on_interrupt` was called, such as in a program that calls commands as functions.
    """
    global _ignored
    if _is_installed:
        _ignored = 1
        signal.signal(signal.SIGINT, _raise_first)


def _raise_first(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt, or have `run` raise it; from now on, this thread too ends the process at once."""
    signal.signal(signal.SIGINT, lambda number, frame: _exit())
    if _cancel is None:
        raise KeyboardInterrupt
    _cancel()


def run(main: "Coroutine[Any, Any, T]") -> "T":
    """Run a coroutine as asyncio.run does. A SIGINT that `raise_on_interrupt` asks for cancels it; KeyboardInterrupt is
    raised when it has ended. Raised where the signal arrives, it could come out of any callback."""
    import asyncio

    is_interrupted = False

    async def cancellable() -> "T":
        global _cancel
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            nonlocal is_interrupted
            is_interrupted = True
            loop.call_soon_threadsafe(task.cancel)

        _cancel = cancel
        try:
            return await main
        finally:
            _cancel = None

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if is_interrupted:
            raise KeyboardInterrupt from None
        raise


def keep_line() -> None:
    """Never erase the terminal's current line from now on: it contains output, not progress."""
    global _exit_output
    _exit_output = b"\n"


def _watch(descriptor: int) -> None:
    """Wait for the numbers of signals, which the interpreter writes to the pipe when they arrive."""
    global _ignored
    while numbers := os.read(descriptor, 64):
        for _ in range(numbers.count(signal.SIGINT)):
            if _ignored == 0:
                _exit()
            _ignored -= 1


def _exit() -> None:
    """End the process; return at once if the other thread is already doing so."""
    if not _exiting.acquire(blocking=False):
        return
    try:
        if os.isatty(2):
            progress_line.acquire(timeout=_MAX_WAIT_SECONDS)  # this thread may hold it already
            os.write(2, b"\n" if os.environ.get("TERM") == "dumb" else _exit_output)
    finally:
        os._exit(EXIT_CODE)
