"""A proxy between the page and its server, which holds an answer in the middle, however fast both of them are."""

from __future__ import annotations

import contextlib
import socket
import threading

from tests.waiting import PATIENCE_SECONDS


class Proxy:
    """Forwards connections to a port, and can cut all of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._num_left: int | None = None
        """How many bytes of the server to forward before one connection is held."""
        self._is_closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def hold_after(self, num_bytes: int) -> None:
        """Forward so many bytes more from the server, then nothing more on that connection until it is cut."""
        self._num_left = num_bytes

    def cut(self) -> None:
        self._num_left = None
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_closed.set()
        self._sockets.append(self._listener)  # whose thread then ends
        self.cut()
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [near, far]
                threading.Thread(target=self._forward, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._forward, args=(far, near, True), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_answer and self._num_left is not None:
                    first, self._num_left = data[: self._num_left], max(0, self._num_left - len(data))
                    target.sendall(first)
                    if len(first) == len(data):
                        continue
                    self._num_left = None
                    self._is_closed.wait(PATIENCE_SECONDS)
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
