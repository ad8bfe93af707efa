"""Keeps long work off the event loop: what is large runs on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

MAX_INLINE_SIZE = 16_384
"""Characters or token ids that are processed on the event loop: tokenizing a megabyte takes a second."""


async def inline_or_on_thread(size: int, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs on a thread where `size` exceeds MAX_INLINE_SIZE. Raises what it does."""
    return await asyncio.to_thread(work) if size > MAX_INLINE_SIZE else work()
