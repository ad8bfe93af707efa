"""Failures that a person can act on, and how they are told."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RecipeError(Exception):
    """A failure whose message is one clear sentence for the person at the terminal."""


@contextmanager
def disk_errors_explained(path: Path) -> Iterator[None]:
    """Turn "no space left" (and its kin) while writing `path` into a RecipeError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise disk_full(path) from error
        raise
    except Exception as error:  # safetensors and tokenizers wrap the system's words
        if "No space left on device" in str(error):
            raise disk_full(path) from error
        raise


def disk_full(path: Path) -> RecipeError:
    """The message for a full disk; the last whole checkpoint is still in place."""
    return RecipeError(
        f"The disk is full: {path} could not be written. The last complete checkpoint is intact; "
        "free some space and run the same command again to continue from it."
    )
