"""The metadata of GGUF files on the hub, of which tokenizers are built, without gigabytes of weights. They are kept in
the cache folder as GGUF files without tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from onward.checkpoints.gguf import without_tensors
from onward.checkpoints.paths import MAGIC
from onward.errors import CheckpointError, HubUnreachable, ModelNameError, SetupError
from onward.model_files.base import Progress
from onward.model_files.files import write_whole
from onward.models.gguf_names import choose, is_gguf_name
from onward.models.hub import HubName, ask_hub
from onward.models.pull import http_client

if TYPE_CHECKING:
    import httpx2

FOLDER = "metadata"
"""In the cache folder; in it a folder per repository, revision and commit."""
_SUFFIX = ".metadata.gguf"
"""After the name of the file on the hub: the file of a model in parts is none itself."""
SIZES = (1 << 22, 1 << 24, 1 << 26)
"""How many bytes of a file are asked for, one after the other, until its metadata are complete. Vocabularies of 262,000
tokens with their merges take 16 MB."""


def kept_metadata(name: HubName, cache_dir: Path) -> Path | None:
    """Return the file with the metadata of a model on the hub that was written last, None if there is none."""
    try:
        found = sorted(_folder(name, cache_dir).glob("*/*"), key=lambda path: path.stat().st_mtime)
        by_name = {unquote(path.name.removesuffix(_SUFFIX)): path for path in found if path.name.endswith(_SUFFIX)}
        return by_name[choose(by_name, name.file, name.repository)[0]]
    except (OSError, ModelNameError):
        return None


def fetch_metadata(name: HubName, cache_dir: Path, progress: Progress) -> Path | None:
    """Return a GGUF file with the metadata of a model on the hub, and no tensors; None where its repository has no GGUF
    file. May download the beginning of one; blocks. Raises as `hub.fetch`, and CheckpointError for a file without
    metadata."""
    info = ask_hub(name, lambda hub: hub.HfApi().model_info(name.repository, revision=name.revision))
    commit, files = str(info.sha), [str(each.rfilename) for each in info.siblings or ()]
    if not name.file and not any(map(is_gguf_name, files)):
        return None
    file = choose(files, name.file, name.repository)[0]
    path = _folder(name, cache_dir) / quote(commit, safe="") / (quote(file, safe="") + _SUFFIX)
    if path.is_file():
        return path
    url, headers = ask_hub(
        name, lambda hub: (hub.hf_hub_url(name.repository, file, revision=commit), hub.utils.build_hf_headers())
    )
    ask_hub(name, lambda hub: hub.get_hf_file_metadata(url))  # what may not be downloaded is said in its words
    progress(f"Downloading the metadata of {name.repository}/{file}")
    _write(path, _metadata(url, headers, f"{name.repository}/{file}"))
    return path


def _folder(name: HubName, cache_dir: Path) -> Path:
    return cache_dir / FOLDER / name.repository.replace("/", "--") / quote(name.revision or "main", safe="")


def _metadata(url: str, headers: dict[str, str], where: str) -> bytes:
    """Return the file without tensors of a file at a URL. Raises HubUnreachable, CheckpointError."""
    import httpx2

    begun = bytearray()
    with http_client() as client:
        for size in SIZES:
            try:
                is_whole = _extend(client, url, headers, begun, size)
            except httpx2.HTTPStatusError as error:  # whose text has the address, which may be signed
                status = error.response.status_code
                raise HubUnreachable(f"{where} could not be downloaded ({status}): try again later.") from None
            except httpx2.HTTPError as error:
                reason = str(error) or type(error).__name__
                raise HubUnreachable(f"{where} could not be downloaded ({reason}): try again later.") from None
            try:
                return without_tensors(begun, where)
            except CheckpointError:
                if is_whole or size == SIZES[-1] or not begun.startswith(MAGIC):
                    raise
    raise AssertionError("the last size returns or raises")


def _extend(client: httpx2.Client, url: str, headers: dict[str, str], begun: bytearray, size: int) -> bool:
    """Download until `begun` has so many bytes of a file. Returns whether that is all of it. Raises
    httpx2.HTTPError."""
    wanted = {**headers, "range": f"bytes={len(begun)}-{size - 1}", "accept-encoding": "identity"}
    with client.stream("GET", url, headers=wanted) as response:
        if response.status_code == 416:  # nothing is left
            return True
        response.raise_for_status()
        if response.status_code != 206:  # from the beginning, whatever was asked for
            begun.clear()
        for chunk in response.iter_bytes():
            begun += chunk
            if len(begun) >= size:
                return False
    return True


def _write(path: Path, content: bytes) -> None:
    """Write a file, all of it or nothing. Raises SetupError."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise SetupError(
            f"{path.parent} cannot be written ({error.strerror}): set --cache-dir to another folder."
        ) from None
