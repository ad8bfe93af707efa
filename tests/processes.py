"""Starts a real `onward serve` on a free port, and stops it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def served(*flags: str, model: str = "toy", module: str = "onward") -> Iterator[str]:
    """The base URL (`http://127.0.0.1:PORT`) of a server that is ready. Ended by SIGTERM.

    `module` is a program that takes the arguments of `onward`.
    """
    command = [sys.executable, "-m", module, "serve", "--port", "0", "--model", model, "--drain", "2", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            if line.startswith("Onward is ready at "):
                yield line.split()[4].removesuffix("/v1")
                break
        else:
            raise AssertionError("the server did not start:\n" + "".join(said))
    finally:
        process.terminate()
        process.stdout.close()
        process.wait(30)
