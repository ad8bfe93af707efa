"""Readiness notification for service managers (`Type=notify` in a systemd unit): the protocol of sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket

log = logging.getLogger("onward.server")

READY = "READY=1"
STOPPING = "STOPPING=1"


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
