"""What the server's process needs besides its application: a bound socket, signals, limits, readiness for service
managers (`Type=notify` in a systemd unit, sd_notify(3)), collections between requests, ending when an engine is dead.

A full collection traverses everything that waiting requests hold. With thousands of them it takes most of a second, in
which the event loop stands still (`python -m benchmarks.overload`). It frees little: a completion leaves no cycles, a
connection leaves a few.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from onward.backends.base import Backend
from onward.errors import SetupError
from onward.residency import freeze_objects
from onward.settings import Settings
from onward.stdio import silence_stdout

log = logging.getLogger("onward.server")

READY = "READY=1"
STOPPING = "STOPPING=1"
NEW_OBJECTS, NEW_COLLECTIONS = 5_000, 5
"""New objects after which they are traversed, and after how many such collections the middle generation is. A burst of
requests reaches Python's 700 again and again, and nothing is freed."""
MAX_YOUNG_COLLECTIONS = 250
"""Collections of the middle generation after which a full one comes in any case: an overloaded server makes more than
one per second, so that this is every few minutes."""
MIN_YOUNG_COLLECTIONS = 3
"""Those after which a full collection is worth its time when the server is idle: 75,000 objects, as by default."""
GARBAGE_POLL_SECONDS = 1.0
SWITCH_SECONDS = 0.0005
"""How long the event loop may keep the interpreter lock from the thread that reads what an engine's process has sent.
By default it is 5 ms, which a busy loop would use up step after step."""
DEAD_ENGINE_EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h. Not zero, so that `Restart=on-failure` and the like start the server again."""
HEALTH_POLL_SECONDS = 0.25


class AddressInfo(NamedTuple):
    """Where to listen."""

    family: socket.AddressFamily
    kind: socket.SocketKind
    protocol: int
    address: tuple[Any, ...]


def resolve_address(host: str, port: int) -> AddressInfo:
    """Return the address of this machine that `host` names. Raises SetupError."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise SetupError(
            f"The host name {host!r} cannot be resolved; pass an address or a name of this machine with --host."
        ) from None
    return AddressInfo(family, kind, number, address)


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet. Raises SetupError."""
    family, kind, number, address = resolve_address(host, port)
    listener = socket.socket(family, kind, number)
    if sys.platform != "win32":  # there it would let two programs share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.set_inheritable(False)
    except OSError as error:
        listener.close()
        raise SetupError(bind_error(error, host, port)) from None
    return listener


def bind_error(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"Port {port} on {host} is in use. Stop the program that uses it, or choose another --port."
        case errno.EACCES:
            return f"Port {port} is reserved for privileged users; choose a --port above 1023."
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine; choose another --host."
    return f"Cannot listen on {host} port {port}: {error.strerror}."


def set_harmless_signals() -> None:
    """SIGUSR1 and SIGUSR2, by which other servers reopen their logs, do nothing: the log is standard error. Nor does
    SIGHUP without a terminal, until a loop handles it; where it is ignored (nohup), it stays so."""
    if sys.platform != "win32":
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)
        if not has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, lambda *_: log.warning("SIGHUP while the server starts: send it again later"))


def has_terminal() -> bool:
    """Return whether a terminal controls this process, whose closing SIGHUP reports."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def raise_open_files_limit() -> None:
    """Allow as many open files as the hard limit: the usual soft limit, 1024, is for programs that use select()."""
    if sys.platform != "win32":
        import resource

        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
        except (OSError, ValueError):  # macOS refuses a hard limit that it reports as unlimited
            log.debug("the limit of open files is unchanged")


def print_or_log(line: str) -> None:
    """Print a line, or log it if standard output is closed or full: the server runs without it."""
    try:
        print(line, flush=True)
    except OSError:
        silence_stdout()
        log.info(line)


def notify(state: str) -> None:
    """Send `state` as one datagram to $NOTIFY_SOCKET. Do nothing where no service manager asks for it.

    A name that begins with @ is a Linux abstract socket. Never raises: a failure is logged as a warning.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.connect("\0" + address[1:] if address[0] == "@" else address)
            manager.sendall(state.encode())
    except OSError as problem:
        log.warning("the service manager could not be notified of %s: %s", state, problem.strerror or problem)


def prepare_interpreter(settings: Settings) -> None:
    """Have Python collect seldom, and let the thread that reads from an engine's process run soon."""
    freeze_objects()
    delay_collections()
    if settings.engine_process == "on":
        sys.setswitchinterval(SWITCH_SECONDS)


def delay_collections() -> None:
    """Let Python collect after NEW_OBJECTS, and make a full collection only after MAX_YOUNG_COLLECTIONS."""
    gc.set_threshold(NEW_OBJECTS, NEW_COLLECTIONS, MAX_YOUNG_COLLECTIONS)


async def collect_when_idle(num_running: Callable[[], int]) -> None:
    """Make a full collection whenever one is due and no request runs. Never returns."""
    while True:
        await asyncio.sleep(GARBAGE_POLL_SECONDS)
        if gc.get_count()[2] >= MIN_YOUNG_COLLECTIONS and not num_running():
            gc.collect()


async def wait_for_dead_engine(backend: Backend) -> None:
    """Return when an engine has crashed that is not started again."""
    while backend.health().state != "dead":
        await asyncio.sleep(HEALTH_POLL_SECONDS)
    models = backend.health().models
    names = ", ".join(name for name, model in models.items() if model.state == "dead")
    log.critical(
        "the engine of %s is dead: the server ends with exit code %d, to be restarted", names, DEAD_ENGINE_EXIT_CODE
    )
