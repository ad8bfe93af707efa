"""Repositories as a hub has them: what their index names is downloaded, whatever its name, and served without the hub.

The hub is a local server, which huggingface_hub uses like the real one.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.making import write_gguf
from tests.checkpoints.tiny import tiny
from tests.cli.terminal import COMMAND

from .test_hub import AnsweringHandler

pytestmark = pytest.mark.slow
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Serves folders: a repository for each folder of a folder."""

    root: Path
    num_sent = 0
    """Bytes of files."""

    def files(self, repository: str) -> dict[str, Path]:
        folder = self.root / repository
        return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


class Handler(AnsweringHandler):
    server: Hub

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        is_description = parts[:2] == ["api", "models"]
        files = self.server.files("/".join(parts[2:4] if is_description else parts[:2]))
        if not files:
            return self.send(404, b"{}", {"x-error-code": "RepoNotFound"})
        if is_description:
            return self.send(200, json.dumps(_description(parts, files)).encode(), {})
        file = files.get("/".join(parts[4:]))
        if file is None:
            return self.send(404, b"", {"x-error-code": "EntryNotFound", "x-repo-commit": COMMIT})
        content = file.read_bytes()
        headers = {"etag": f'"{_digest(content)}"', "x-repo-commit": COMMIT}
        status, wanted = 200, content
        if span := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", "")):
            status, wanted = 206, content[int(span[1]) : int(span[2]) + 1]
        self.server.num_sent += len(wanted) if self.command == "GET" else 0
        return self.send(status, wanted, headers)

    do_HEAD = do_GET


def _digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def _description(parts: list[str], files: dict[str, Path]) -> Any:
    if "tree" in parts:
        return [
            {"type": "file", "path": name, "size": path.stat().st_size, "oid": _digest(path.read_bytes())}
            for name, path in files.items()
        ]
    siblings = [{"rfilename": name} for name in files]
    return {"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": siblings, "private": False, "gated": False}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(("127.0.0.1", 0), Handler) as server:
        server.root = tmp_path / "repositories"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def whole(folder: Path) -> None:
    write_folder(folder, "llama")
    for name, text in {"special_tokens_map.json": "{}", "README.md": "# it", "pytorch_model.bin": "x"}.items():
        (folder / name).write_text(text, encoding="utf-8")


def parts(folder: Path, pattern: str) -> None:
    write_folder(folder, "llama", num_files=2)
    index = folder / "model.safetensors.index.json"
    text = index.read_text(encoding="utf-8")
    for path in folder.glob("model-*"):
        new = pattern.format(path.name.split("-")[1])
        text = text.replace(path.name, new)
        path.rename(folder / new)
    index.write_text(text, encoding="utf-8")


def gguf(path: Path) -> None:
    metadata, tensors = tiny("llama")
    path.parent.mkdir(parents=True)
    write_gguf(path, metadata, tensors)


REPOSITORIES: dict[str, Any] = {
    "one file": whole,
    "parts": lambda folder: parts(folder, "model-{}-of-00002.safetensors"),
    "parts with two endings": lambda folder: parts(folder, "model.safetensors-{}-of-00002.safetensors"),
    "parts of another name": lambda folder: parts(folder, "weights-{}-of-00002.safetensors"),
    "a GGUF file": lambda folder: gguf(folder / "thing-Q8_0.gguf"),
    "a GGUF file in a folder": lambda folder: gguf(folder / "Q8_0" / "thing-Q8_0.gguf"),
    "a GGUF file in capitals": lambda folder: gguf(folder / "thing-q8_0.GGUF"),
}


def onward(hub: Hub, home: Path, *arguments: str, before: Sequence[str] = ()) -> tuple[int, str]:
    """Exit code and the last line on standard error."""
    done = ran(hub, home, *arguments, before=before)
    return done.returncode, (done.stderr.decode().splitlines() or [""])[-1]


def ran(hub: Hub, home: Path, *arguments: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[bytes]:
    """`before` is a command that runs it, with its arguments."""
    where = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(home / "hf"), "HOME": str(home)}
    more = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "ONWARD_CACHE_DIR": str(home / "cache")}
    done = subprocess.run(
        [*before, *COMMAND, *arguments], env=os.environ | where | more, capture_output=True, check=False
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done


def test_repositories_are_downloaded_and_served_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    for number, (name, make) in enumerate(REPOSITORIES.items()):
        make(hub.root / "org" / f"m{number}")
        assert onward(hub, tmp_path / "home", "pull", f"org/m{number}")[0] == 0, name
    shutil.rmtree(hub.root)
    for number, name in enumerate(REPOSITORIES):
        found = onward(hub, tmp_path / "home", "models", "show", f"org/m{number}")
        assert found[0] == 0, (name, found)
    code, line = onward(hub, tmp_path / "home", "pull", "org/nothing")
    assert code == 4 and "was found neither here nor on the hub" in line


def test_a_disk_that_a_download_fills_is_reported_in_one_message_with_what_it_takes(hub: Hub, tmp_path: Path) -> None:
    """A resource limit stands in for the full disk. Nothing is kept of the file, though it was received."""
    (hub.root / "org/m").mkdir(parents=True)
    (hub.root / "org/m/m-Q8_0.gguf").write_bytes(b"GGUF" + bytes(4_000_000))
    limited = ("bash", "-c", 'ulimit -f 1000; exec "$@"', "-")
    code, line = onward(hub, tmp_path / "home", "pull", "org/m", before=limited)
    said = f"org/m could not be downloaded to {tmp_path}/home/hf/hub (File too large; 4.0 MB are needed there)."
    assert (code, line) == (4, f"onward: {said}")
