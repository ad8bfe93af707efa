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
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from onward.errors import HubUnreachable
from onward.settings import home_folder

if TYPE_CHECKING:
    import httpx

DEFAULT_INDEX = "https://pypi.org/simple/"
_JSON = "application/vnd.pypi.simple.v1+json"
_VARIABLES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel's address and, where the index states it, its SHA-256."""

    url: str
    sha256: str | None


def index_url(environ: Mapping[str, str] = os.environ) -> str:
    """Return the index that pip or uv would use, with a slash at the end."""
    found = next((environ[name] for name in _VARIABLES if environ.get(name)), None) or _configured(environ)
    return (found or DEFAULT_INDEX).rstrip("/") + "/"


def _configured(environ: Mapping[str, str]) -> str | None:
    """Return the index in pip's configuration files, of which later ones count more."""
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


def find_wheel(client: httpx.Client, index: str, package: str) -> Wheel:
    """Return the wheel of `NAME==VERSION`. Blocks. Raises HubUnreachable: no index, no such package or version."""
    import httpx

    name, _, version = package.partition("==")
    page = urljoin(index, re.sub(r"[-_.]+", "-", name).lower() + "/")
    try:
        response = client.get(page, headers={"accept": f"{_JSON}, text/html;q=0.5"})
        response.raise_for_status()
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise HubUnreachable(f"The package index has no {name} ({page} answers {status}).") from None
    except httpx.HTTPError as error:
        raise HubUnreachable(
            f"The package index {index} cannot be reached ({error or type(error).__name__}): check the network."
        ) from None
    prefix = f"{re.sub(r'[-_.]+', '_', name)}-{version}-".lower()
    for file_name, url, sha256 in _files(response):
        if file_name.lower().startswith(prefix) and file_name.endswith(".whl"):
            return Wheel(urljoin(str(response.url), url), sha256)
    raise HubUnreachable(f"The package index {index} has no wheel of {name} {version}.")


def _files(response: httpx.Response) -> list[tuple[str, str, str | None]]:
    """Return name, address and SHA-256 of each file on a project's page."""
    if response.headers.get("content-type", "").startswith(_JSON):
        try:
            page = msgspec.json.decode(response.content, type=_Page)
        except msgspec.MsgspecError:
            return []
        return [(each.filename, each.url, each.hashes.get("sha256")) for each in page.files]
    links = _Links()
    links.feed(response.text)
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
        url, fragment = urldefrag(address)
        kind, _, value = fragment.partition("=")
        self.files.append((unquote(url.rpartition("/")[2]), url, value if kind == "sha256" else None))
