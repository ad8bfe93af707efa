"""The entry point of `onward`: handles Ctrl-C before anything slow is imported, then runs the command."""

import os
import sys

from onward.cli.interrupt import exit_on_interrupt, install_handler

TYPE_CHECKING = False  # importing typing, or threading, would leave Ctrl-C unhandled for longer
if TYPE_CHECKING:
    import threading


def main() -> None:
    """Run the command line in `sys.argv`. Raises SystemExit."""
    install_handler()
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # numpy's BLAS threads, which nothing uses: they cost start time and memory
    import threading

    from onward.stdio import escape_what_cannot_be_encoded, replace_closed_streams

    escape_what_cannot_be_encoded()
    threading.excepthook = _report_thread_error
    replace_closed_streams()  # before anything opens a file or a pipe, which would get their descriptors
    try:
        exit_on_interrupt()
        from onward.cli.root import root

        root(prog_name="onward")
    except (MemoryError, RuntimeError, ImportError, SystemError) as problem:
        from onward.cli.output.errors import NO_MEMORY, lacks_memory

        if not lacks_memory(problem):
            raise
        print(f"onward: {NO_MEMORY}", file=sys.stderr, flush=True)
        os._exit(1)
    except SystemExit as end:
        exit_on_interrupt()
        if isinstance(end.code, int) and _flush():
            os._exit(end.code)  # ending threads and unloading libraries would take up to 0.5 s
        raise


def _report_thread_error(error: "threading.ExceptHookArgs") -> None:
    """Print what ended a thread: a sentence if memory was exhausted, else the traceback."""
    import threading

    from onward.cli.output.errors import NO_MEMORY, lacks_memory

    if lacks_memory(error.exc_value):
        print(f"onward: {NO_MEMORY}", file=sys.stderr, flush=True)
    else:
        threading.__excepthook__(error)


def _flush() -> bool:
    """Flush standard output and error; return whether both succeeded."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return False
    return True
