"""Shared by all client programs: the servers' addresses, and reporting of checks. Standard library only."""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable

URLS: dict[str, str] = json.loads(os.environ["ONWARD_CLIENT_URLS"])
"""Base URLs: "default", "lenient", "keyed" (requires KEY), "editors" (the model has the name that recipes have), "site"
(allows pages of lite.koboldai.net) and "faults" (the fault-injecting proxy)."""
KEY = os.environ["ONWARD_CLIENT_KEY"]
PROMPT = "Say this is a test"
RECIPES: dict[str, str] = json.loads(os.environ["ONWARD_CLIENT_RECIPES"])
DEFAULT_URL = "http://127.0.0.1:8000"
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


def recipe(section: str, url: str) -> str:
    """Return the settings in a section of the page of editors, for the server at `url`."""
    settings = RECIPES[section]
    assert DEFAULT_URL in settings, section
    return settings.replace(DEFAULT_URL, url)


def metric(name: str, url: str) -> float:
    """Return the sum of a metric of a server."""
    with urllib.request.urlopen(url + "/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}(?:{{|\s)", line))


def until(holds: Callable[[], object], why: Callable[[], object] = lambda: "timed out", seconds: float = 30) -> None:
    """Wait until `holds()` is true. Raises AssertionError with what `why()` returns after `seconds`."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, why()
        time.sleep(0.02)


def raises(kind: type[Exception], function: Callable[[], object]) -> Exception:
    """Return the exception that `function` must raise, of exactly this class."""
    try:
        function()
    except kind as problem:
        assert type(problem) is kind, type(problem)
        return problem
    raise AssertionError(f"no {kind.__name__} was raised")
