"""Real GGUF models of the catalogue, fetched once into a cache outside the source as `onward pull` does.

`python -m tests.real_models.fetch` fetches all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onward.errors import HubUnreachable
from onward.models.catalogue import catalogue
from onward.models.pull import pull, pulled_path

MODELS = ("smollm2", "gemma3")
LARGE_MODELS = ("qwen-coder",)
"""More than a gigabyte: fetched where ONWARD_TEST_LARGE_MODELS is set, used where they are."""


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onward-test-models"


def fetch(name: str) -> Path:
    """The path of a model's file, after downloading it if need be. Raises HubUnreachable."""
    entry = catalogue()[name]
    is_allowed = name in MODELS or os.environ.get("ONWARD_TEST_LARGE_MODELS")
    if not is_allowed and pulled_path(entry, cache_folder()) is None:
        raise HubUnreachable(f"{name} has {entry.size}: set ONWARD_TEST_LARGE_MODELS=1 to fetch it")
    return pull(entry, cache_folder(), print, accepts_terms=True)


def fetched(name: str) -> Path:
    """The same, where a test that needs it is skipped without it."""
    try:
        return fetch(name)
    except HubUnreachable as reason:
        pytest.skip(str(reason))


if __name__ == "__main__":
    for each in (*MODELS, *LARGE_MODELS):
        print(fetch(each))
