"""Tokenizers of GGUF files on the hub: of gigabytes, only the beginning is downloaded. The hub is a local server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.errors import HubUnreachable
from onward.models import gguf_metadata
from tests.checkpoints.making import write_gguf
from tests.checkpoints.tiny import tiny

from .doors import tokens
from .test_hub_repositories import Hub, hub, onward, ran

__all__ = ["hub"]
pytestmark = pytest.mark.slow
FILLING = bytes(20_000_000)


def write(path: Path, **more: Any) -> Path:
    """Write a tiny model, after which many more bytes follow."""
    metadata, tensors = tiny("llama")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(path, metadata | more, tensors)
    with path.open("ab") as file:
        file.write(FILLING)
    return path


@pytest.mark.parametrize(
    ("file", "name", "more", "limit"),
    [
        ("m-Q8_0.gguf", "org/m", {}, 4_300_000),
        ("Q8_0/m-Q8_0.gguf", "org/m:Q8_0", {}, 4_300_000),
        ("m-Q8_0-00001-of-00002.gguf", "org/m", {"split.count": 2, "split.no": 0}, 4_300_000),
        ("m-Q8_0.gguf", "org/m", {"general.description": "x" * 4_500_000}, 17_000_000),
    ],
    ids=["one file", "by a quantisation", "in parts", "long metadata"],
)
def test_of_a_repository_of_gguf_files_only_the_metadata_are_downloaded(
    file: str, name: str, more: dict[str, Any], limit: int, hub: Hub, tmp_path: Path
) -> None:
    whole = write(hub.root / "org/m" / file, **more)
    plain = write(tmp_path / "plain.gguf")
    expected = [token for token, _ in tokens(plain, "a b")]
    home = tmp_path / "home"
    command = ("tokenize", "--model", name, "--no-add-special-tokens", "--format", "json", "a b")
    assert ids(hub, home, *command) == expected
    assert hub.num_sent < min(limit, whole.stat().st_size)
    before = hub.num_sent
    assert ids(hub, home, *command) == expected
    assert hub.num_sent == before, "it was kept"
    shutil.rmtree(hub.root)
    assert ids(hub, home, *command, before=("env", "ONWARD_OFFLINE=true")) == expected
    assert sum(path.stat().st_size for path in (home / "cache/metadata").rglob("*") if path.is_file()) < 5_000_000


def ids(hub: Hub, home: Path, *arguments: str, before: tuple[str, ...] = ()) -> list[int]:
    done = ran(hub, home, *arguments, before=before)
    assert done.returncode == 0, done.stderr.decode()
    found: list[int] = json.loads(done.stdout)["tokens"]
    return found


def test_what_begins_like_no_gguf_file_is_refused_in_a_sentence(hub: Hub, tmp_path: Path) -> None:
    (hub.root / "org/m").mkdir(parents=True)
    (hub.root / "org/m/m-Q8_0.gguf").write_bytes(b"GGML" + FILLING)
    code, line = onward(hub, tmp_path / "home", "tokenize", "--model", "org/m", "a b")
    assert code != 0 and "org/m/m-Q8_0.gguf is not a GGUF file: it does not begin with 'GGUF'" in line
    assert not (tmp_path / "home/cache/metadata").exists()


def test_an_answer_of_the_hub_is_told_without_the_address_that_it_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = httpx2.MockTransport(lambda request: httpx2.Response(403))
    monkeypatch.setattr(gguf_metadata, "http_client", lambda: httpx2.Client(transport=refusing))
    with pytest.raises(HubUnreachable, match=r"org/m/m\.gguf could not be downloaded \(403\)") as refused:
        gguf_metadata._metadata("https://hub.test/m.gguf?signature=secret", {}, "org/m/m.gguf")
    assert "secret" not in str(refused.value)
