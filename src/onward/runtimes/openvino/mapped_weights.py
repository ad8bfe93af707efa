"""The weights of an IR as memory: mapped, and out of this process as soon as OpenVINO has its own copy of them.

OpenVINO maps the file too, but keeps every page that it has read: while it packs a model for its kernels, the process
has both copies, which is nearly twice the file.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from onward.errors import ModelFolderError
from onward.runtimes.files import missing_file
from onward.runtimes.openvino.joined_files import joined
from onward.runtimes.openvino.library import ov

MIN_DROPPED_BYTES = 64 * 2**20
"""Of a file: smaller ones are not worth a thread."""
_DROP_SECONDS = 0.05
"""Between two times that pages are dropped: at a gigabyte per second, as much as a twentieth of one is read."""


class MappedWeights:
    """A mapped file. `tensor`, uint8 [bytes], shares its memory, and so does every constant of a graph that is read
    with it: keep this object as long as the graph, or what was compiled from it."""

    def __init__(self, path: Path, *, behind: Path | None = None) -> None:
        """`behind`: a file that comes before the other one in memory, if it exists.

        Raises ModelFolderError for a file that is missing or may not be read. A graph may have no weights at all.
        """
        if not path.is_file():
            raise ModelFolderError(missing_file(path))
        self._memory: mmap.mmap | None = None
        try:
            if behind is not None and behind.is_file():
                self._memory = joined([behind, path])
            elif path.stat().st_size:
                with path.open("rb") as file:
                    self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelFolderError(f"{path} cannot be read ({error}).") from None
        self._array = np.frombuffer(self._memory or b"", np.uint8)
        self.num_bytes = self._array.size
        self.tensor = ov.Tensor(self._array, ov.Shape([self._array.size]), ov.Type.u8)

    @contextmanager
    def pages_dropped(self) -> Iterator[None]:
        """Drop pages that were read, again and again inside the block, so that few are resident at any time.

        They stay in the system's page cache, and are mapped again if they are needed again. Where the system has no
        such call, nothing happens.
        """
        memory = self._memory
        if memory is None or len(memory) < MIN_DROPPED_BYTES or not hasattr(mmap, "MADV_DONTNEED"):
            yield
            return
        is_over = threading.Event()
        thread = threading.Thread(target=_drop_until, args=(memory, is_over), name="onward-pages", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def _drop_until(memory: mmap.mmap, is_over: threading.Event) -> None:
    while not is_over.wait(_DROP_SECONDS):
        memory.madvise(mmap.MADV_DONTNEED)
