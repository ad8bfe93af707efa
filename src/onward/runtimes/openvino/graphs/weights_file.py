"""The file of a graph's weights, written while the graph is built, so that few of them are in memory at any time."""

from __future__ import annotations

import hashlib
import os
import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Callable, Container
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.runtimes.openvino.library import ov

_ALIGNMENT = 64
"""Of each constant in the file, in bytes: a cache line."""
_MAX_SHARED_BYTES = 1024
_MAX_UNWRITTEN_BYTES = 128 * 2**20
"""Of arrays that wait to be written: a disk is not equally fast all the time."""


class WeightsFile:
    """Writes the values of constants to `path`, one after the other, on a thread; a context manager.

    Constants share zeros until `write_graph` says where in the file their values are: a graph that is only written
    needs no more of them than types and shapes. `advance` receives how many bytes were added. Methods raise OSError
    where the file cannot be written.
    """

    def __init__(self, path: Path, advance: Callable[[int], None] = lambda num_bytes: None) -> None:
        self._file = path.open("xb")
        self._advance = advance
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="onward-weights")
        self._unwritten: deque[tuple[Future[None], int]] = deque()
        """With the bytes of each."""
        self._hash = hashlib.sha256()
        self._end = 0
        self._offsets: dict[str, int] = {}
        """By the name of a constant."""
        self._zeros: dict[int, NDArray[np.uint8]] = {}
        """By number of bytes. Never written, hence hardly resident; they have to outlive the graph."""

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown()
        self._file.close()

    def constant(self, values: NDArray[Any], kind: ov.Type, shape: list[int]) -> Any:
        """Return a constant node of this type and shape, whose bytes `values` has. It is not changed afterwards."""
        values = np.ascontiguousarray(values)
        if values.nbytes not in self._zeros:
            self._zeros[values.nbytes] = np.zeros(values.nbytes, np.uint8)
        zeros = self._zeros[values.nbytes]
        node = ov.op.Constant(ov.Tensor(zeros, ov.Shape(shape), kind), shared_memory=True)
        node.set_friendly_name(f"weights at {self._end}")
        self._append(node.get_friendly_name(), values)
        return node

    def write_graph(self, graph: ov.Model, path: Path) -> str:
        """Write a graph of such constants, and of others, as OpenVINO's XML; return the SHA-256 of the file of weights,
        in hexadecimal. It has to be the last call."""
        _share_small_constants(graph, self._offsets)
        for node in _constants(graph):
            if node.get_friendly_name() not in self._offsets:
                self._append(node.get_friendly_name(), np.ascontiguousarray(node.data))
        try:
            ov.serialize(graph, path, os.devnull)
        except RuntimeError as error:
            raise OSError(str(error)) from None
        tree = ElementTree.parse(path)
        for layer in tree.iter("layer"):
            if layer.get("type") == "Const" and (data := layer.find("data")) is not None:
                data.set("offset", str(self._offsets[layer.get("name", "")]))
        tree.write(path, encoding="utf-8", xml_declaration=True)
        self._wait(most=0)
        self._file.flush()
        return self._hash.hexdigest()

    def _append(self, name: str, values: NDArray[Any]) -> None:
        """Begin to write an array. Waits where too much is unwritten."""
        self._wait(most=max(0, _MAX_UNWRITTEN_BYTES - values.nbytes))
        self._offsets[name] = self._end
        padding = -values.nbytes % _ALIGNMENT
        self._end += values.nbytes + padding
        self._unwritten.append((self._executor.submit(self._write, values, padding), values.nbytes))
        self._advance(values.nbytes)

    def _wait(self, most: int) -> None:
        """Wait until no more than so many bytes are unwritten. Raises OSError if they could not be."""
        while sum(num_bytes for _, num_bytes in self._unwritten) > most:
            written, _ = self._unwritten.popleft()
            written.result()

    def _write(self, values: NDArray[Any], padding: int) -> None:
        for part in (values.reshape(-1).view(np.uint8), np.zeros(padding, np.uint8)):
            self._hash.update(part.data)
            self._file.write(part.data)


def _constants(graph: ov.Model) -> list[Any]:
    return [node for node in graph.get_ops() if node.get_type_name() == "Constant"]


def _share_small_constants(graph: ov.Model, written: Container[str]) -> None:
    """Let equal small constants be one, so that fewer have to be compiled. Mutates `graph`. Those with a name of
    `written` stay: the graph has zeros in place of their values."""
    first: dict[tuple[str, str, bytes], Any] = {}
    for node in _constants(graph):
        if node.get_byte_size() > _MAX_SHARED_BYTES or node.get_friendly_name() in written:
            continue
        key = (str(node.get_element_type()), str(node.get_output_shape(0)), node.data.tobytes())
        shared = first.setdefault(key, node)
        if shared is not node:
            for each in node.output(0).get_target_inputs():
                each.replace_source_output(shared.output(0))
