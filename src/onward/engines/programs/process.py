"""One run of an engine's program, under a keeper: its lines, and how it ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from onward.engines.programs import keeper
from onward.ipc.worker_end import server_signals_blocked

NUM_KEPT_LINES = 400
"""vLLM repeats a traceback in each of its processes before it ends."""
MAX_LINE_CHARACTERS = 500
"""Of a longer line the rest is dropped: a program may print anything."""
STOP_SECONDS = keeper.GRACE_SECONDS + 2.0

HINTS = (
    (r"Free memory on device .* is less than desired", "other programs use the memory of its GPU"),
    (r"out of memory|OutOfMemory|failed to allocate|cannot allocate memory|No available memory", "memory ran out"),
    (
        r"unrecognized arguments|invalid argument|unknown argument|No such option",
        "it does not know a flag: it is too old for Onward, or --engine-arg has a mistake",
    ),
    (r"No space left on device", "the disk is full"),
    (r"[Aa]ddress already in use", "its address is in use"),
)
"""What a line of a program that ended means."""
_ERROR = re.compile(r"((?:^|(?<=\s))\w+Error: (?!.*[Ss]ee root cause|.*Failed core proc).{3,})")
"""What an exception of a program in Python says; not one that only points at another."""
_ENDINGS = {
    126: "it is not a program that can run here: it may be for another processor or system",
    127: "it does not exist",
    128 + signal.SIGILL: "it uses instructions that this processor does not have: it was built for another one",
}


class ProgramProcess:
    """A running program and its keeper. `on_line` receives what it prints, line by line, on a thread of this object.
    `folder` is removed when it is stopped, also when this process is killed.

    Methods may be called on any thread. Raises OSError where no process can be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        on_line: Callable[[str], None],
        folder: Path | None = None,
    ) -> None:
        with server_signals_blocked():
            self._popen = subprocess.Popen(
                [sys.executable, "-I", str(Path(keeper.__file__)), str(folder or ""), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self.printed_at = time.monotonic()
        """When it printed something last, or was started. May be read on any thread."""
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=NUM_KEPT_LINES)
        self._status: int | None = None
        self._ended = threading.Event()
        self._reader = threading.Thread(target=self._read, name="onward-program-log", daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, name="onward-program", daemon=True).start()

    @property
    def pid(self) -> int:
        """Of the keeper, which is the id of the group of all its processes."""
        return self._popen.pid

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until it has ended. Returns whether it has."""
        return self._ended.wait(seconds)

    @property
    def reason(self) -> str:
        """How it ended, and its last lines, as the end of a sentence without a full stop."""
        assert self._status is not None, "it has not ended"
        text = "\n".join(self._tail)
        hint = next((words for pattern, words in HINTS if re.search(pattern, text)), None)
        how = _ENDINGS.get(self._status) or hint or _how_it_ended(self._status)
        last = next((line for line in reversed(self._tail) if re.search(r"\w{2}", line)), "")
        said = next((found[1] for line in reversed(self._tail) if (found := _ERROR.search(line))), None)
        if said is not None and said not in last:
            return f"{how} (it said: {said!r})"
        return f"{how} (its last line: {last!r})" if last else how

    def kill(self) -> None:
        """End it and all its processes at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End it, gently first. Waits until it has ended."""
        self._close_input()
        if not self.wait(STOP_SECONDS):
            self.kill()
            self.wait(STOP_SECONDS)

    def _wait(self) -> None:
        """Wait for the keeper; then end what is left of its group, before another process can have its id."""
        os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        self.kill()
        self._status = self._popen.wait()
        self._close_input()
        self._reader.join(1.0)  # the last lines
        self._ended.set()

    def _close_input(self) -> None:
        assert self._popen.stdin is not None
        with suppress(OSError):
            self._popen.stdin.close()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as output:
            for line in lines_of(self._chunks(output.fileno())):
                self._tail.append(line)
                self._on_line(line)

    def _chunks(self, file: int) -> Iterator[bytes]:
        while chunk := os.read(file, 1 << 16):
            self.printed_at = time.monotonic()
            yield chunk


def lines_of(chunks: Iterator[bytes]) -> Iterator[str]:
    """Yield the lines in chunks of bytes, which end with LF or CR as progress bars do: printable, the first
    MAX_LINE_CHARACTERS of each, none that is empty."""
    rest = b""
    for chunk in chunks:
        *lines, rest = re.split(rb"[\r\n]", rest + chunk)
        yield from filter(None, map(_printable, lines))
        rest = rest[: 4 * MAX_LINE_CHARACTERS]
    yield from filter(None, [_printable(rest)])


_ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def _printable(line: bytes) -> str:
    text = _ESCAPE.sub(b"", line[: 8 * MAX_LINE_CHARACTERS]).decode("utf-8", "replace")
    return "".join(each if each.isprintable() else " " for each in text[:MAX_LINE_CHARACTERS]).strip()


def _how_it_ended(status: int) -> str:
    number = -status if status < 0 else status - 128 if 128 < status < 128 + 65 else 0
    if number:
        with suppress(ValueError):
            return f"it was ended by {signal.Signals(number).name}"
    return f"it ended with exit code {status}"
