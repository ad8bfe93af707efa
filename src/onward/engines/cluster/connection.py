"""Joining a Ray cluster, with the errors that operators meet as sentences."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from onward.errors import SetupError

PREFIX = "onward-"
"""Prefix of the names of Onward's applications on Ray Serve, before the model's name."""
CONNECT_SECONDS = 5.0
MISSING = "A cluster needs Ray, which is not installed: pip install 'onward[cluster]'."


TOKEN = Path("~/.ray/auth_token")
"""The secret without which the ports of a Ray with authentication answer nobody. This is where Ray reads it."""


class NoCluster(SetupError):
    """There is no Ray cluster at the address, or this machine is not a node of it."""


def use_token() -> None:
    """Make connections and processes of Ray use the token of this account, if it has one, unless RAY_AUTH_MODE says
    otherwise. To be called before Ray is imported, which is when Ray reads it."""
    if TOKEN.expanduser().is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def make_token() -> None:
    """Make a token for this account, unless it has one or RAY_AUTH_MODE is set, and use it."""
    path = TOKEN.expanduser()
    if "RAY_AUTH_MODE" not in os.environ and not path.exists():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with (
            suppress(FileExistsError),
            os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file,
        ):
            file.write(secrets.token_hex(32))
    use_token()


def connect(address: str) -> None:
    """Join the Ray cluster at HOST:PORT, or the one of this machine ("auto"), as a driver.

    This machine must be a node of it. May be called again for the same address. Raises SetupError, NoCluster.
    """
    if address != "auto":
        _check_port(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    use_token()
    try:
        import ray
    except ImportError:
        raise SetupError(MISSING) from None
    logging.getLogger("ray.serve").addFilter(_is_important)
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise NoCluster(
            f"There is no Ray cluster at {address}, or this machine is not one of its nodes: {_first_line(error)} "
            "`onward cluster up` starts one, `onward cluster add-node ADDRESS` joins one."
        ) from None
    except Exception as error:  # Ray raises RuntimeError where versions differ, and others
        raise SetupError(f"The Ray cluster at {address} cannot be joined: {_first_line(error)}") from None


def disconnect() -> None:
    """Leave the cluster that this process has joined."""
    import ray

    ray.shutdown()


def _check_port(address: str) -> None:
    """Raise SetupError unless something listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise SetupError(f"{address!r} is not an address: pass HOST:PORT, as `onward cluster up` prints it, or auto.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise NoCluster(
            f"Nothing answers at {address} ({error}). `onward cluster up` starts a cluster and prints its address."
        ) from None


def _is_important(record: logging.LogRecord) -> bool:
    """Return whether to log a record: Ray Serve sets the level of its logger itself, and logs what it does."""
    return record.levelno >= logging.WARNING


def address_of_cluster() -> str:
    """Return HOST:PORT of the cluster that this process has joined."""
    import ray

    address: str = ray.get_runtime_context().gcs_address
    return address


def applications() -> dict[str, Any]:
    """Return the state of Onward's applications, by their names on Ray Serve. Raises SetupError."""
    from ray import serve
    from ray.serve.exceptions import RayServeException

    try:
        found = serve.status().applications
    except RayServeException as error:
        raise SetupError(f"Ray Serve does not answer: {_first_line(error)}") from None
    return {name: state for name, state in found.items() if name.startswith(PREFIX)}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
