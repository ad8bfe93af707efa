"""Progress of a download, for those who wait for it."""

from __future__ import annotations

import io
from typing import Any

from onward.machine import bytes_in_words
from onward.model_files.base import Progress


class Transfer:
    """Reports a download as one sentence per percent: `Downloading smollm2, 41.2 MB of 98.1 MB: 42 %`.

    May be used on any thread. `total` 0: not known yet, and nothing is reported.
    """

    def __init__(self, words: str, progress: Progress, *, total: int = 0, done: int = 0) -> None:
        self.total, self.done = total, done
        self._words = words
        self._progress = progress
        self._reported = -1

    def advance(self, num_bytes: int) -> None:
        """Note that so many bytes have arrived, or, if negative, that they have to be fetched again."""
        self.set(self.done + num_bytes)

    def set(self, done: int) -> None:
        self.done = done
        percent = self._percent()
        if 0 <= percent <= 100 and percent != self._reported:
            self._reported = percent
            amount = f"{bytes_in_words(done)} of {bytes_in_words(self.total)}"
            self._progress(f"{self._words}, {amount}: {percent} %")

    def pause(self, words: str) -> None:
        """Report what is done instead while nothing arrives: no percentage stands still meanwhile."""
        self._reported = -1
        self._progress(words)

    def _percent(self) -> int:
        return 100 * self.done // self.total if self.total else -1


def hub_bar(transfer: Transfer) -> type[Any]:
    """Return a class of progress bars for the hub's library that draw nothing: those of bytes are passed on. The
    library sums all files up in them from version 1 on; in 0.x it counts only files, and nothing is passed on."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._counts_bytes = options.get("unit") == "B"
            super().__init__(*arguments, **{**options, "file": io.StringIO(), "disable": False})

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            if self._counts_bytes and self.total:
                transfer.total = max(transfer.total, int(self.total))
                transfer.set(max(transfer.done, int(self.n)))
            return False

    return Bar
