"""Model folders from the hub: downloaded once, resumed when broken off, used from the cache when offline."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from onward.errors import HubUnreachable, ModelNameError, SetupError
from onward.folders import home_folder
from onward.machine import room_wanted
from onward.model_files.base import Progress
from onward.model_files.files import TOKENIZER_FILES
from onward.model_files.formats import hub_formats
from onward.models.check import conversions
from onward.models.gguf_names import choose, is_gguf_name
from onward.models.transfer import Transfer, hub_bar
from onward.network import is_http_url, proxy_of, trusted_certificates

T = TypeVar("T")

_ID = re.compile(
    r"((https://)?(hf\.co|huggingface\.co)/)?(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?(:(?P<file>[\w./-]+))?"
)

REPOSITORY_PREFIX = "models--"
"""Begins the names of folders in the hub's cache."""
_CONNECTION_ERRORS = {"TransportError", "ConnectionError", "Timeout", "ChunkedEncodingError"}
"""Base classes by name: those of httpx2 in huggingface_hub 2, of httpx in 1, of requests in 0.x, and Python's own."""
MAX_QUOTED_CHARACTERS = 300
"""How much is quoted of an error of the hub's library, which may contain what a server has answered."""
_CLIENT_FACTORIES = (
    ("set_client_factory", "_GLOBAL_CLIENT_FACTORY"),
    ("configure_http_backend", "_GLOBAL_BACKEND_FACTORY"),
)
"""Of huggingface_hub from 1.0, and of 0.x: what sets the function that makes its HTTP clients, and where it is."""
_NAMING_HEADERS = ("x-repo-commit", "etag", "x-linked-etag")
"""Headers by which the hub's library names files and folders of its cache."""
_LEADING_OUT = re.compile(r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)")
"""Matches the path of a file in a repository that is absolute, or leaves its folder."""
_PLAIN_NAME = re.compile(r'(W/)?"?(?!\.+"?$)[^/\\"\x00-\x1f]{1,200}"?')


class _Shared:
    """What threads that use the hub's library share, since its settings are those of the whole process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_users = 0
        self.changes = ExitStack()
        """Undone when the last user has left."""


_SHARED = _Shared()


@dataclass(frozen=True, slots=True)
class HubName:
    """`org/name`, with `@revision` for a branch, tag or commit, and `:file` for a GGUF file or a quantisation."""

    repository: str
    revision: str | None
    file: str = ""

    @property
    def model_id(self) -> str:
        """What the model is named in requests."""
        return f"{self.repository}:{self.file}" if self.file else self.repository


def hub_name(text: str) -> HubName | None:
    """`text` as a name on the hub, None when it does not look like one."""
    found = _ID.fullmatch(text)
    return HubName(found["repository"], found["revision"], found["file"] or "") if found else None


def fetch(
    name: HubName,
    *,
    allow_download: bool,
    progress: Progress = lambda stage: None,
    must_be_computed: bool = True,
) -> Path:
    """Return the folder of a model on the hub, in the first format that the repository contains, or its GGUF file.

    Blocks. `progress` receives how much of a download is done; checksums are the hub's. `must_be_computed`: weights are
    not downloaded if the configuration shows that Onward does not compute them. Raises ModelNameError: not found, not
    allowed, no model in it, or not computed; HubUnreachable: no network and nothing cached.
    """
    if not allow_download and not name.file and (cached := cached_snapshot(name)):
        return cached
    for each in () if name.file else hub_formats():
        folder = _download(name, each.patterns, allow_download=allow_download, progress=progress)
        if not each.matches(folder):
            continue
        if missing := [listed for listed in each(folder).listed_files() if not (folder / listed).exists()]:
            if must_be_computed and (problem := each(folder).configuration_problem()):
                raise ModelNameError(f"The weights of {name.repository} were not downloaded. {problem}")
            others = tuple(map(_literal, missing))
            _download(name, others, allow_download=allow_download, progress=progress)
        return folder
    files = gguf_files(name, allow_download=allow_download)
    if files or name.file:
        wanted = choose(files, name.file, name.repository)
        snapshot = _download(name, tuple(wanted), allow_download=allow_download, progress=progress)
        return snapshot / wanted[0]
    readable = ", ".join([*(each.format for each in hub_formats()), "GGUF"])
    raise ModelNameError(
        f"{name.repository} contains no model that Onward can read ({readable}). "
        f"Convert it with {conversions(name.repository)}."
    )


def _literal(name: str) -> str:
    """Return the pattern that matches a file of this name only."""
    return re.sub(r"([*?[])", r"[\1]", name)


def hub_cache() -> Path:
    """Return where the hub's library keeps downloads, by its own variables (importing it would take 0.1 s)."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(home_folder() / ".cache")
    home = _expanded(os.environ.get("HF_HOME") or f"{cache}/huggingface")
    stated = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(_expanded(stated) if stated else f"{home}/hub")


def _expanded(path: str) -> str:
    return str(Path(os.path.expandvars(path)).expanduser())


def _cached_repository(name: HubName) -> Path:
    return hub_cache() / f"{REPOSITORY_PREFIX}{name.repository.replace('/', '--')}"


def cached_snapshot(name: HubName) -> Path | None:
    """Return the folder of a repository in the hub's cache that contains a model that can be read, None if there is
    none. Other programs may have downloaded only some of its files."""
    repository = _cached_repository(name)
    revision = name.revision or "main"
    try:
        commit = (repository / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        commit = revision
    folder = repository / "snapshots" / commit
    if Path(commit).name != commit or not folder.is_dir():
        return None
    return folder if any(each.matches(folder) and not each(folder).problems() for each in hub_formats()) else None


def fetch_tokenizer(name: HubName, *, allow_download: bool = True) -> Path:
    """Return the folder of a repository's tokenizer, whatever its model is. May download its files; blocks. Raises as
    `fetch`."""
    return _download(name, TOKENIZER_FILES, allow_download=allow_download)


def gguf_files(name: HubName, *, allow_download: bool) -> list[str]:
    """Return the GGUF files of a repository; where nothing may be downloaded, those in the cache. Raises as `fetch`."""
    if not allow_download:
        folder = _download(name, ("*.gguf", "*.GGUF"), allow_download=False)
        found = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
        return [file for file in found if is_gguf_name(file)]
    try:
        files = ask_hub(name, lambda hub: hub.HfApi().list_repo_files(name.repository, revision=name.revision))
    except HubUnreachable:
        return gguf_files(name, allow_download=False)
    return [file for file in files if isinstance(file, str) and is_gguf_name(file)]


def ask_hub(name: HubName, question: Callable[[Any], T]) -> T:
    """Return what a function of the hub's library finds out about a repository. Raises as `fetch`."""
    _check_network()
    try:
        with _library_silenced():
            return question(_library())
    except Exception as error:  # as in _download
        kind = HubUnreachable if _no_connection(error) else ModelNameError
        raise kind(_reason(name, error, allow_download=True)) from error


def _download(
    name: HubName,
    patterns: tuple[str, ...],
    *,
    allow_download: bool,
    progress: Progress = lambda stage: None,
) -> Path:
    """Return the local snapshot with those files of the repository that match. Raises ModelNameError."""
    if allow_download:
        _check_network()
    download = _library().snapshot_download
    transfer = Transfer(f"Downloading {name.repository}", progress)
    bars = {"tqdm_class": hub_bar(transfer)} if allow_download else {}
    before = _kept_bytes(name)
    try:
        with _library_silenced():
            return Path(
                download(
                    repo_id=name.repository,
                    revision=name.revision,
                    allow_patterns=list(patterns),
                    local_files_only=not allow_download,
                    **bars,
                )
            )
    except Exception as error:  # the hub's own errors, and those of its HTTP client, which share no class
        kind = HubUnreachable if allow_download and _no_connection(error) else ModelNameError
        missing_bytes = transfer.total - (_kept_bytes(name) - before)
        raise kind(_reason(name, error, allow_download, max(0, missing_bytes))) from error


def _kept_bytes(name: HubName) -> int:
    """Return how many bytes of a repository the cache has. Of a file whose download failed, the library's version 2
    keeps nothing, and older ones keep what has arrived."""
    kept = 0
    with suppress(OSError):
        for each in os.scandir(_cached_repository(name) / "blobs"):
            kept += each.stat(follow_symlinks=False).st_size
    return kept


def _library() -> Any:
    """Return huggingface_hub, whose clients refuse strange names. Imported on first use: it takes 0.13 s, which a start
    with a built-in model should not pay."""
    _check_all_answers()
    return import_module("huggingface_hub")


@dataclass(frozen=True, slots=True)
class _CheckingFactory:
    """Makes HTTP clients, of httpx or of requests, with the check."""

    make: Callable[[], Any]

    def __call__(self) -> Any:
        client = self.make()
        hooks = client.event_hooks if hasattr(client, "event_hooks") else client.hooks
        if _check_names not in hooks["response"]:  # a program's own function may call the one that was set before
            hooks["response"].append(_check_names)
        return client


def _check_all_answers() -> None:
    """Let `_check_names` see each answer of the hub before its library does. The library has one client for the whole
    process, and one function that makes it: that of whoever embeds Onward, if there is one, is what makes ours."""
    http = import_module("huggingface_hub.utils._http")
    with _SHARED.lock:
        for setter, place in _CLIENT_FACTORIES:
            make = getattr(http, place, None)
            if make is not None and not isinstance(make, _CheckingFactory):
                getattr(http, setter)(_CheckingFactory(make))


def _check_names(response: Any, *_: object, **__: object) -> None:
    """Raise ValueError for an answer whose names would lead out of the folders of the hub's library, which makes paths
    of them unseen."""
    names = [response.headers.get(each) for each in _NAMING_HEADERS] if _NAMING_HEADERS[0] in response.headers else []
    files: list[object] = []
    if "/api/models/" in str(response.request.url):
        stated, files = _stated_names(response.read() if hasattr(response, "read") else response.content)
        names += stated
    leading_out = [each for each in names if isinstance(each, str) and _PLAIN_NAME.fullmatch(each) is None]
    leading_out += [each for each in files if isinstance(each, str) and _LEADING_OUT.search(each)]
    if leading_out:
        raise ValueError(f"it names a file {leading_out[0][:80]!r}")


def _stated_names(content: bytes) -> tuple[list[object], list[object]]:
    """Return the commit and the digests of files, and the files' paths, that a description of a repository, or a list
    of its files, states."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return [], []  # the library says so
    entries = _objects(found if isinstance(found, list) else [found])
    digests = [each["lfs"].get("oid") for each in entries if isinstance(each.get("lfs"), dict)]
    siblings = [file.get("rfilename") for each in entries for file in _objects(each.get("siblings"))]
    return [*(each.get("sha") for each in entries), *digests], [*(each.get("path") for each in entries), *siblings]


def _objects(found: object) -> list[dict[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


@contextmanager
def _library_silenced() -> Iterator[None]:
    """Hide what the hub's library logs below errors, such as that no file matched one of the formats; its warning that
    the disk has no room for a file, which it downloads all the same; and the bars that version 0.x has per file.

    All of this belongs to the whole process: it is changed when the first of several threads comes, and is as it was
    when the last one has left; only the filter of that one warning stays.
    """
    with _SHARED.lock:
        if not _SHARED.num_users:
            _SHARED.changes.enter_context(_quiet_library())
        _SHARED.num_users += 1
    try:
        yield
    finally:
        with _SHARED.lock:
            _SHARED.num_users -= 1
            if not _SHARED.num_users:
                _SHARED.changes.close()


@contextmanager
def _quiet_library() -> Iterator[None]:
    import_module("huggingface_hub.utils.logging")  # which sets the level; version 2 would import it in a download
    logger, bars = logging.getLogger("huggingface_hub"), import_module("huggingface_hub.utils")
    before, has_bars = logger.level, not bars.are_progress_bars_disabled()
    warnings.filterwarnings("ignore", "Not enough free disk space")
    logger.setLevel(logging.ERROR)
    if has_bars:
        bars.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(before)
        if has_bars:
            bars.enable_progress_bars()


def _check_network() -> None:
    """Raise SetupError, in a sentence, for what the hub's client would fail at."""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if not is_http_url(endpoint):
        raise SetupError("HF_ENDPOINT must be an http:// or https:// URL: correct it, or unset it.")
    proxy_of(endpoint)
    if endpoint.startswith("https://"):
        trusted_certificates()


def _no_connection(error: Exception) -> bool:
    """Return whether the hub was not reached, or the connection broke during the download."""
    missing = import_module("huggingface_hub.errors").LocalEntryNotFoundError
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, missing) or not names.isdisjoint(_CONNECTION_ERRORS)


def _reason(name: HubName, error: Exception, allow_download: bool, missing_bytes: int = 0) -> str:
    """Return a sentence for each way a download can fail. The order matters: these classes derive from each other.
    `missing_bytes`: what the download has still to write; 0 if unknown."""
    errors = import_module("huggingface_hub.errors")
    model = name.repository
    if isinstance(error, errors.GatedRepoError):
        return f"{model} is gated: accept its terms on the hub, then log in with `hf auth login`."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{model} has no revision {name.revision!r}."
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{model} was found neither here nor on the hub. If it is private, log in with `hf auth login`."
    if isinstance(error, errors.LocalEntryNotFoundError):
        if not allow_download:
            return f"{model} is not in the local cache: download it with `onward pull {model}`."
        if any(isinstance(each, errors.OfflineModeIsEnabled) for each in _causes(error)):
            return f"{model} is not in the local cache, and HF_HUB_OFFLINE keeps it from being downloaded."
        status = _status_of(error)
        answers = f"answers {status}: try again later" if status else "cannot be reached: check the network"
        return f"{model} is not in the local cache, and the hub {answers}."
    if isinstance(error, errors.HFValidationError):
        return f"{model!r} is neither a path nor a valid name on the hub."
    said = " ".join(str(error).split())[:MAX_QUOTED_CHARACTERS]
    if isinstance(error, OSError) and (wanted := room_wanted(error, missing_bytes)):
        return f"{model} could not be downloaded to {hub_cache()} ({error.strerror}{wanted})."
    if isinstance(error, OSError | errors.HfHubHTTPError) or _no_connection(error) or _is_of_http(error):
        return f"{model} could not be downloaded ({said})."
    return f"{model} could not be downloaded: what the hub answers cannot be understood ({said})."


def _is_of_http(error: Exception) -> bool:
    """Return whether the hub's HTTP client raised an error, such as for redirects without end."""
    return any(kind.__name__ in ("HTTPError", "InvalidURL", "RequestException") for kind in type(error).__mro__)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, and those that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status of the answer that led to an error, None if there was no answer."""
    statuses = (getattr(getattr(each, "response", None), "status_code", None) for each in _causes(error))
    return next((status for status in statuses if isinstance(status, int)), None)
