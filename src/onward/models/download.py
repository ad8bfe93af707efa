"""Downloads over HTTP to a file: resumed where they were broken off, checked, bounded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import HubUnreachable, SetupError
from onward.network import route_in_words, without_secrets

if TYPE_CHECKING:
    import httpx

TIMEOUT_SECONDS = 60.0
"""Without a byte, or for a connection."""
MAX_ATTEMPTS = 4
"""In a row without a new byte."""


def download(
    client: httpx.Client,
    url: str,
    path: Path,
    sha256: str | None,
    advance: Callable[[int], None],
    *,
    max_bytes: int,
) -> None:
    """Download to `path`, or what is missing of it; `advance` receives the numbers of bytes that arrived.

    Blocks. Raises HubUnreachable where the server cannot be reached, refuses, or breaks off again and again; SetupError
    for a file that is larger than `max_bytes` or has another sha256, which is removed; OSError.
    """
    import httpx

    attempts, reason = 0, ""
    while attempts < MAX_ATTEMPTS:
        before = _size(path)
        try:
            if _fetch(client, url, path, advance, max_bytes):
                break
            reason = "the connection was closed early"
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            raise HubUnreachable(f"{without_secrets(url)} answers {status}: try again later.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
        attempts = 0 if _size(path) > before else attempts + 1
    else:
        raise HubUnreachable(
            f"{without_secrets(url)} cannot be reached{route_in_words(url)}, or breaks off ({reason}): check the "
            "network and run the command again; it goes on where it stopped."
        )
    if sha256 is not None and digest(path) != sha256:
        path.unlink()
        place = without_secrets(url)
        raise SetupError(f"{place} arrived damaged, or is not the file that the index lists: run the command again.")


def _fetch(client: httpx.Client, url: str, path: Path, advance: Callable[[int], None], max_bytes: int) -> bool:
    """Append what is missing; return whether the file is complete now. Raises httpx.HTTPError, SetupError."""
    have = _size(path)
    headers = {"range": f"bytes={have}-", "accept-encoding": "identity"} if have else {"accept-encoding": "identity"}
    with client.stream("GET", url, headers=headers) as response:
        if have and response.status_code == 416:  # nothing is left: the sum decides whether it is the file
            return True
        response.raise_for_status()
        is_rest = response.status_code == 206
        stated = response.headers.get("content-length", "")
        received, size = 0, have if is_rest else 0
        if not is_rest and have:
            advance(-have)
        with path.open("ab" if is_rest else "wb") as file:
            for chunk in response.iter_bytes():
                file.write(chunk)
                received += len(chunk)
                advance(len(chunk))
                if size + received > max_bytes:
                    path.unlink()
                    raise SetupError(f"{without_secrets(url)} is larger than any file that is expected there.")
    return not stated.isdigit() or int(stated) == received


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
