"""The parent of an engine's program: ends it, and all processes that it started, when Onward is gone.

Run by its path, with a folder to remove at the end ("" for none) and the program's command: it imports nothing of
Onward. Its standard input is a pipe that Onward holds open and that even `kill -9` closes. It leads a process group of
its own, which the program inherits. Its exit code is that of the program, 128 and the number for a signal, 126 or 127
where the program could not be started.

It is two processes, since Ray kills the children of a process that it ends, but not theirs: the first only waits for
the second, which is the program's parent.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 5.0
"""How long the program may take to end by itself."""
CANNOT_RUN, NOT_FOUND = 126, 127


def main(folder: str, command: list[str]) -> int:
    """Run a program until it ends, or this process's input does. Returns its exit code."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the program would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    if second := os.fork():
        return _shell_code(os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]))
    try:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN
    threading.Thread(target=_end_with_input, args=(program, folder), daemon=True).start()
    status = program.wait()
    if folder and select.select([0], [], [], 0)[0]:  # Onward is gone: that may be why the program has ended
        shutil.rmtree(folder, ignore_errors=True)
    return _shell_code(status)


def _shell_code(status: int) -> int:
    """Return an exit code as shells have it, of one that is negative for a signal."""
    return status if status >= 0 else 128 - status


def _end_with_input(program: subprocess.Popen[bytes], folder: str) -> None:
    """Wait for the end of this process's input, then end the group: gently, then at once, this process too."""
    while os.read(0, 4096):
        pass
    if folder:
        shutil.rmtree(folder, ignore_errors=True)  # first: when the program has ended, this process has too
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while program.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
