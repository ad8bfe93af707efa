"""Shared by all client programs: the servers' addresses, and reporting of checks. Standard library only."""

from __future__ import annotations

import atexit
import json
import os
import sys
import traceback
from collections.abc import Callable

URLS: dict[str, str] = json.loads(os.environ["ONWARD_CLIENT_URLS"])
"""Base URLs: "default", "lenient", "keyed" (requires KEY), "site" (allows pages of lite.koboldai.net) and "faults"
(the fault-injecting proxy)."""
KEY = os.environ["ONWARD_CLIENT_KEY"]
PROMPT = "Say this is a test"
_failed: list[str] = []


def check(name: str) -> Callable[[Callable[[], object]], None]:
    """Run the decorated function at once and print the result as a line of JSON."""

    def run(function: Callable[[], object]) -> None:
        try:
            function()
            print(json.dumps({"check": name, "ok": True}), flush=True)
        except Exception:
            _failed.append(name)
            print(json.dumps({"check": name, "ok": False, "detail": traceback.format_exc()}), flush=True)

    return run


@atexit.register
def _exit_code() -> None:
    sys.stdout.flush()
    if _failed:
        os._exit(1)


def raises(kind: type[Exception], function: Callable[[], object]) -> Exception:
    """Return the exception that `function` must raise, of exactly this class."""
    try:
        function()
    except kind as problem:
        assert type(problem) is kind, type(problem)
        return problem
    raise AssertionError(f"no {kind.__name__} was raised")
