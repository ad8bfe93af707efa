"""The entry point of `onward`: handles Ctrl-C before anything slow is imported, then runs the command."""

import os
import sys

from onward.cli.interrupt import exit_on_interrupt, install_handler


def main() -> None:
    """Run the command line in `sys.argv`. Raises SystemExit."""
    install_handler()
    from onward.stdio import escape_what_cannot_be_encoded, replace_closed_streams

    escape_what_cannot_be_encoded()
    replace_closed_streams()  # before anything opens a file or a pipe, which would take their descriptors
    exit_on_interrupt()
    from onward.cli.root import root

    try:
        root(prog_name="onward")
    except SystemExit as end:
        exit_on_interrupt()
        if isinstance(end.code, int) and _flush():
            os._exit(end.code)  # ending threads and unloading libraries would take up to 0.5 s
        raise


def _flush() -> bool:
    """Flush standard output and error; return whether both succeeded."""
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        return False
    return True
