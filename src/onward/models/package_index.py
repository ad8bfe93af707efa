"""Wheels of a Python package index as files: found by its simple API, never installed or executed.

Sources: PEP 503, PEP 691; pip's and uv's variables and files for the index's address.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin

import msgspec

from onward.errors import HubUnreachable, SetupError
from onward.folders import home_folder
from onward.network import is_http_url, route_in_words
from onward.network import without_secrets as shown

if TYPE_CHECKING:
    import httpx2

MAX_PAGE_BYTES = 50_000_000
"""Maximum size of a project's page; PyPI's largest is a tenth of it."""
DEFAULT_INDEX = "https://pypi.org/simple/"
_JSON = "application/vnd.pypi.simple.v1+json"
_NAMED = re.compile(r"^[A-Za-z0-9_.-]+=")
"""uv names an index: NAME=URL."""
_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel's address and, where the index states it, its SHA-256."""

    url: str
    sha256: str | None


def index_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return the index that pip or uv would use, with a slash at the end; it may contain a password.

    Raises SetupError, without the URL, if it is not one.
    """
    origin = next((name for name in _VARIABLES if environ.get(name)), "pip's settings")
    stated = environ.get(origin) or _configured(environ) or DEFAULT_INDEX
    url = _NAMED.sub("", stated.strip()).rstrip("/") + "/"
    if not is_http_url(url):
        raise SetupError(f"The package index of {origin} must be an http:// or https:// URL: correct it.")
    return url


def _configured(environ: Mapping[str, str]) -> str | None:
    """Return the index in pip's configuration files, of which later ones take precedence."""
    home = home_folder()
    user = Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    files = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf", user, Path(sys.prefix) / "pip.conf"]
    if environ.get("PIP_CONFIG_FILE"):
        files.append(Path(environ["PIP_CONFIG_FILE"]))
    parser = configparser.RawConfigParser()
    for file in files:
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue
    return parser.get("global", "index-url", fallback=None)


def find_wheel(client: httpx2.Client, index: str, package: str) -> Wheel:
    """Return the wheel of `NAME==VERSION`. Blocks. Raises HubUnreachable: no index, no such package or version, or an
    answer that is not a page of an index; SetupError as `network.Transport`."""
    import httpx2

    name, _, version = package.partition("==")
    page = urljoin(index, re.sub(r"[-_.]+", "-", name).lower() + "/")
    try:
        url, content_type, content = _get(client, page)
    except httpx2.HTTPStatusError as error:
        status = error.response.status_code
        raise HubUnreachable(f"The package index has no {name} ({shown(page)} answers {status}).") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise HubUnreachable(
            f"The package index {shown(index)} cannot be reached{route_in_words(page)} ({reason}): check the network."
        ) from None
    prefix = f"{re.sub(r'[-_.]+', '_', name)}-{version}-".lower()
    for file_name, link, sha256 in _files(content_type, content):
        if file_name.lower().startswith(prefix) and file_name.endswith(".whl") and (found := _joined(url, link)):
            return Wheel(found, sha256)
    raise HubUnreachable(f"The package index {shown(index)} has no wheel of {name} {version}.")


def _get(client: httpx2.Client, page: str) -> tuple[str, str, bytes]:
    """Return where a page is, its type, and at most MAX_PAGE_BYTES of it. Raises httpx2.HTTPError."""
    with client.stream("GET", page, headers={"accept": f"{_JSON}, text/html;q=0.5"}) as response:
        response.raise_for_status()
        content = bytearray()
        for chunk in response.iter_bytes():
            content += chunk
            if len(content) > MAX_PAGE_BYTES:
                break
        return str(response.url), response.headers.get("content-type", ""), bytes(content[:MAX_PAGE_BYTES])


def _joined(page: str, link: str) -> str | None:
    """Return the address of a link, None for one that is not HTTP."""
    try:
        url = urljoin(page, link)
    except ValueError:
        return None
    return url if is_http_url(url) else None


def _files(content_type: str, content: bytes) -> list[tuple[str, str, str | None]]:
    """Return name, address and SHA-256 of each file on a project's page."""
    if content_type.startswith(_JSON):
        try:
            page = msgspec.json.decode(content, type=_Page)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return []
        return [(each.filename, each.url, each.hashes.get("sha256")) for each in page.files]
    links = _Links()
    links.feed(content.decode("utf-8", "replace"))
    return links.files


class _File(msgspec.Struct):
    filename: str
    url: str
    hashes: dict[str, str] = {}


class _Page(msgspec.Struct):
    files: list[_File]


class _Links(HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        address = dict(attrs).get("href")
        if tag != "a" or not address:
            return
        url, _, fragment = address.partition("#")
        kind, _, value = fragment.partition("=")
        self.files.append((unquote(url.rpartition("/")[2]), url, value if kind == "sha256" else None))
