"""A real server process over a scripted backend, for the tests of sockets and signals: `python served.py PORT …`.

The prompt chooses the script: "hang" sends one text delta and then nothing, "fail" one and an error, "slow" waits
forever before its first, "die" leaves a backend whose engine is dead; all others get a story.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from onward.completions.request import CompletionRequest
from onward.errors import SetupError
from onward.server.run import serve
from onward.settings import Settings, resolve
from tests.server.fakes import STORY, FakeBackend, Step, delta


def script_of(request: CompletionRequest) -> list[Step]:
    match request.prompt:
        case "hang":
            return [delta("a"), asyncio.Event()]
        case "slow":
            return [asyncio.Event()]
        case "fail":
            return [delta("a"), RuntimeError("secret")]
    return list(STORY)


def compose(settings: Settings, progress: Callable[[str], None]) -> FakeBackend:
    """$SERVED_LOADS: a pipe that is read to its end before the models are loaded; its text is an error."""
    if path := os.environ.get("SERVED_LOADS"):
        progress("Loading")
        if problem := Path(path).read_text(encoding="utf-8"):
            raise SetupError(problem)
    backend = FakeBackend(script_of=script_of)

    def script_or_death(request: CompletionRequest) -> list[Step]:
        if request.prompt == "die":
            backend.state = "dead"
        return script_of(request)

    backend.script_of = script_or_death
    return backend


def main(port: str, *flags: str) -> int:
    """$SERVED_TERMINAL: the terminal of this session."""
    if path := os.environ.get("SERVED_TERMINAL"):
        os.open(path, os.O_RDWR)  # a session leader's first terminal controls it
    named = dict(flag.split("=") for flag in flags)
    try:
        return serve(resolve({"port": port, **named}, environ={}).settings, compose)
    except SetupError as problem:
        print(problem, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
