"""The entry point of `onward`: handles Ctrl-C before anything slow is imported, then runs the command."""

from __future__ import annotations

import os
import sys

from onward.cli.interrupt import EXIT_CODE, exit_on_interrupt


def main() -> None:
    """Run the command line in `sys.argv`. Raises SystemExit."""
    exit_on_interrupt()
    from onward.cli.root import root

    try:
        root(prog_name="onward")
    except SystemExit as end:
        exit_on_interrupt()
        if end.code == EXIT_CODE:  # interrupted: do not wait for threads
            _flush()
            os._exit(EXIT_CODE)
        raise


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
