"""Errors that a user can act on, and their messages."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RecipeError(Exception):
    """An error whose message says what is wrong and what to do."""


@contextmanager
def convert_disk_errors(path: Path) -> Iterator[None]:
    """Raise RecipeError for "no space left" and similar errors while `path` is written; other errors pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise disk_full(path) from error
        raise
    except Exception as error:  # safetensors and tokenizers wrap the system's message
        if "No space left on device" in str(error):
            raise disk_full(path) from error
        raise


def disk_full(path: Path) -> RecipeError:
    """Return the error for a full disk."""
    return RecipeError(
        f"The disk is full: {path} could not be written. The last complete checkpoint is intact. "
        "Free some space and run the same command again to continue from it."
    )
