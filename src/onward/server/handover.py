"""A port that passes from one server process to the next without a gap (`--take-over`), or comes from systemd.

Every server listens at a Unix socket in a folder of its user. A new one connects to it, receives the listening socket,
and loads its models while the old one keeps answering. When it accepts connections itself, it says so: the old one
stops accepting, finishes what it has begun, and ends. Meanwhile it serves the streams that it keeps at another Unix
socket, to which the new one passes requests for them on. If the new process ends before it is ready, nothing changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import struct
import sys
import urllib.parse
from contextlib import suppress
from pathlib import Path

import msgspec

from onward.api.seed import SEED_HEADER
from onward.engines.upstreams.base import UpstreamError
from onward.engines.upstreams.http import HTTPClient
from onward.errors import NotFound, SetupError
from onward.folders import runtime_folder
from onward.server.exchange import HttpExchange

log = logging.getLogger("onward.server")

PROTOCOL = 1
"""Raised when messages change; servers of different numbers do not replace each other."""
MAX_MESSAGE = 4_096
ANSWER_SECONDS = 10.0
IS_SUPPORTED = sys.platform != "win32" and hasattr(socket, "AF_UNIX") and hasattr(socket, "send_fds")
_FIRST_ACTIVATED_FD = 3
FORWARDED_HEADERS = (b"authorization", b"api-key", b"x-api-key", b"accept", b"last-event-id")
"""A header that marks a request for a kept stream."""


class Hello(msgspec.Struct, tag="hello"):
    """A new server wants the port."""

    protocol: int
    pid: int


class Granted(msgspec.Struct, tag="granted"):
    """It gets the port: the listening socket comes with this message."""

    pid: int


class NotGranted(msgspec.Struct, tag="not-granted"):
    """It does not get the port."""

    reason: str


class Accepting(msgspec.Struct, tag="accepting"):
    """The new server accepts connections."""


class HandedOver(msgspec.Struct, tag="handed-over"):
    """The old server accepts none any more; what it keeps is served at the Unix socket `streams` until it ends."""

    streams: str


Message = Hello | Granted | NotGranted | Accepting | HandedOver
_decoder = msgspec.json.Decoder(Message)


def activated_listener() -> socket.socket | None:
    """Return the listening TCP socket that systemd passes to this process (sd_listen_fds(3)), if it does.

    Its variables are removed from the environment: they are not for programs that this one starts. Raises SetupError.
    """
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()):
        return None
    if count != "1":
        raise SetupError(f"The service manager passed {count or 'no'} sockets; a server listens on one.")
    listener = None
    with suppress(OSError):
        listener = socket.socket(fileno=_FIRST_ACTIVATED_FD)
        if listener.family in (socket.AF_INET, socket.AF_INET6) and listener.type == socket.SOCK_STREAM:
            listener.set_inheritable(False)
            return listener
    if listener is not None:
        listener.detach()
    raise SetupError("The service manager passed a socket that is not a TCP socket: set ListenStream=HOST:PORT.")


def control_path(host: str, port: int) -> Path:
    """Return where the server that listens at this address can be asked for its socket."""
    return runtime_folder() / f"{host}-{port}.sock"


class Predecessor:
    """The server that listened before. Made by `find`; used on one event loop afterwards. `listener` is the socket that
    both have until `replace`."""

    def __init__(self, connection: socket.socket, listener: socket.socket, pid: int) -> None:
        self.listener = listener
        self.pid = pid
        self._connection = connection
        self._streams: str | None = None

    @classmethod
    def find(cls, host: str, port: int) -> Predecessor | None:
        """Ask the server that listens at this address for its socket; None if there is none. Blocks. Raises SetupError
        if it refuses."""
        path = control_path(host, port)
        if not IS_SUPPORTED:
            raise SetupError("--take-over needs Unix sockets, which this system does not have.")
        try:
            check_private(path.parent)
        except FileNotFoundError:
            return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWER_SECONDS)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            return None
        except OSError as error:
            connection.close()
            reason = error.strerror or error
            raise SetupError(f"The server behind {path} cannot be asked for its port: {reason}.") from None
        try:
            return cls._ask(connection, (host, port))
        except BaseException:
            connection.close()
            raise

    @classmethod
    def _ask(cls, connection: socket.socket, listens_at: tuple[str, int]) -> Predecessor:
        if not _is_own(connection):
            raise SetupError("The server that listens there belongs to another user, and is not taken over.")
        descriptors: list[int] = []
        try:
            connection.sendall(_encoded(Hello(PROTOCOL, os.getpid())))
            data, descriptors, _, _ = socket.recv_fds(connection, MAX_MESSAGE, 1)
            message = _decoder.decode(data)
        except (OSError, msgspec.MsgspecError):
            message = NotGranted("It does not answer.")
        sockets = [socket.socket(fileno=number) for number in descriptors]
        if isinstance(message, Granted) and len(sockets) == 1 and sockets[0].getsockname()[:2] == listens_at:
            sockets[0].set_inheritable(False)
            return cls(connection, sockets[0], message.pid)
        for each in sockets:
            each.close()
        reason = message.reason if isinstance(message, NotGranted) else "It listens elsewhere."
        raise SetupError(f"The server that listens at {listens_at[0]} port {listens_at[1]} is not taken over: {reason}")

    async def replace(self) -> None:
        """Tell it that this server accepts connections, and wait until it accepts none. It may have ended already."""
        loop = asyncio.get_running_loop()
        self._connection.setblocking(False)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await loop.sock_sendall(self._connection, _encoded(Accepting()))
                message = _decoder.decode(await loop.sock_recv(self._connection, MAX_MESSAGE))
        except (OSError, TimeoutError, msgspec.MsgspecError):
            log.warning("process %d, which listened before, has ended or does not answer", self.pid)
            return
        if isinstance(message, HandedOver):
            self._streams = message.streams

    async def watch(self) -> None:
        """Notice when it has ended: then there is nothing to pass on to it. Never returns."""
        with suppress(OSError):
            while self._streams is not None and await asyncio.get_running_loop().sock_recv(self._connection, 1):
                pass
        self._streams = None
        await asyncio.Event().wait()

    @property
    def keeps_streams(self) -> bool:
        """Whether it may still have streams that it keeps."""
        return self._streams is not None

    async def forward(self, exchange: HttpExchange) -> None:
        """Pass a request for a kept stream on to it, and its answer back. Raises NotFound if it has ended,
        ClientDisconnected; UpstreamError if it ends while it answers."""
        named = {name.decode(): exchange.header(name) for name in FORWARDED_HEADERS}
        headers = {name: value for name, value in named.items() if value is not None}
        client = HTTPClient(f"unix:{self._streams}", headers, silence_seconds=0)
        try:
            target = urllib.parse.quote(exchange.path, safe="/")
            async with client.request(exchange.method, target, keep_alive=False) as response:
                response.expect_events(sys.maxsize)
                exchange.headers.append((b"cache-control", b"no-cache, must-revalidate"))
                if seed := response.header(SEED_HEADER):
                    exchange.add_headers({SEED_HEADER: seed})
                await exchange.start_response(response.status, response.content_type)
                while exchange.method != "HEAD" and (chunk := await response.chunk()):
                    await exchange.send_chunk(chunk)
            await exchange.end_response()
        except UpstreamError:
            if exchange.response_started:
                raise  # the connection is closed in the middle of the answer
            raise NotFound("The process that kept this stream has ended.") from None
        finally:
            await client.close()

    def close(self) -> None:
        """Give up before `replace`: the other server continues as if nothing had happened."""
        self._connection.close()
        self.listener.close()


class Handover:
    """Gives this server's port to a successor that asks for it. Belongs to one event loop. Does nothing where the
    folder of the socket cannot be used, which is logged."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._path = control_path(*listener.getsockname()[:2]) if IS_SUPPORTED else Path()
        self.streams_path = self._path.with_name(f"handed-over-{os.getpid()}.sock")
        self.successor: int | None = None
        """The process that loads its models to replace this one, or has replaced it."""
        self._control: socket.socket | None = None
        self._control_inode = 0
        self._connection: socket.socket | None = None
        self._is_ready = asyncio.Event()

    @property
    def is_taken(self) -> bool:
        """Whether a successor accepts connections."""
        return self._is_ready.is_set()

    async def wait_for_successor(self) -> None:
        """Return when another server accepts connections at this one's port; `hand_over` must follow."""
        self._control = self._open() if IS_SUPPORTED else None
        if self._control is None:
            await asyncio.Event().wait()
            return
        answering = asyncio.create_task(self._accept(self._control))
        try:
            await self._is_ready.wait()
        finally:
            answering.cancel()
            if not self.is_taken:
                self._close_control()

    def _open(self) -> socket.socket | None:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        control.setblocking(False)
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            check_private(self._path.parent)
            self._path.unlink(missing_ok=True)  # of a process that was killed: this one has the port now
            control.bind(str(self._path))
            control.listen()
            self._control_inode = self._path.stat().st_ino
        except (OSError, SetupError) as problem:
            log.info("no other server can take this one over: %s", problem)
            control.close()
            return None
        return control

    async def _accept(self, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                connection, _ = await loop.sock_accept(control)
                group.create_task(self._answer(connection))

    async def _answer(self, connection: socket.socket) -> None:
        """Give the port to one that asks; wait until it is ready, or has ended."""
        connection.setblocking(False)
        try:
            if not _is_own(connection):
                return
            hello = await self._receive(connection)
            if not isinstance(hello, Hello):
                return
            if refusal := self._refusal(hello):
                await asyncio.get_running_loop().sock_sendall(connection, _encoded(NotGranted(refusal)))
                return
            self.successor = hello.pid
            log.info("process %d loads its models, to take over", hello.pid)
            try:
                socket.send_fds(connection, [_encoded(Granted(os.getpid()))], [self._listener.fileno()])
                is_ready = isinstance(await self._receive(connection), Accepting)
            except BaseException:
                self.successor = None
                raise
            if is_ready:
                self._connection = connection
                self._is_ready.set()
            else:
                self.successor = None
                log.warning("process %d has ended before it was ready: this server continues", hello.pid)
        except (OSError, msgspec.MsgspecError) as problem:
            log.warning("a server that wanted to take over is gone: %s", problem)
        finally:
            if self._connection is not connection:
                connection.close()

    def _refusal(self, hello: Hello) -> str:
        if hello.protocol != PROTOCOL:
            return "It is of a version that this one cannot replace: stop it, then start this one."
        if self.successor is not None:
            return f"Process {self.successor} is taking it over already."
        return ""

    async def _receive(self, connection: socket.socket) -> Message | None:
        """Return the next message, None at the end."""
        data = await asyncio.get_running_loop().sock_recv(connection, MAX_MESSAGE)
        return _decoder.decode(data) if data else None

    async def hand_over(self) -> None:
        """Tell the successor that this server accepts no more connections, and what it keeps is at `streams_path`.

        The connection stays open until this process ends, by which the successor notices that.
        """
        assert self._connection is not None, "nobody took over"
        self._close_control()
        with suppress(OSError):
            message = _encoded(HandedOver(str(self.streams_path)))
            await asyncio.get_running_loop().sock_sendall(self._connection, message)

    def close(self) -> None:
        """Remove the files in the folder."""
        self._close_control()
        if self._connection is not None:
            self.streams_path.unlink(missing_ok=True)

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
            with suppress(OSError):
                if self._path.stat().st_ino == self._control_inode:
                    self._path.unlink()


def check_private(folder: Path) -> None:
    """Raise SetupError unless only this user can write to the folder, FileNotFoundError where there is none."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SetupError(f"{folder} is not a folder of this user alone (mode 0700): remove it, or set XDG_RUNTIME_DIR.")


def _is_own(connection: socket.socket) -> bool:
    """Return whether the process at the other end is of this user, as far as the system says; the folder is private."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _encoded(message: Message) -> bytes:
    return msgspec.json.encode(message)
