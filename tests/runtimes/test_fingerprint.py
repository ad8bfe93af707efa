"""One string for everything that results depend on: it changes if and only if that does."""

from __future__ import annotations

import os
from pathlib import Path

from onward.runtimes.fingerprint import fingerprint


def test_the_fingerprint_changes_with_content_and_facts(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = fingerprint([file], ["fast"], None)
    assert first == fingerprint([file], ["fast"], None)
    assert first != fingerprint([file], ["exact"], None)
    file.write_bytes(b"two")
    assert first != fingerprint([file], ["fast"], None)


def test_the_fingerprint_does_not_depend_on_the_path(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"same")
    assert fingerprint([tmp_path / "a"], [], None) == fingerprint([tmp_path / "b"], [], None)


def test_a_known_file_is_not_read_again(tmp_path: Path) -> None:
    file, cache = tmp_path / "weights", tmp_path / "cache"
    file.write_bytes(b"one")
    os.utime(file, ns=(10**18, 10**18))
    first = fingerprint([file], [], cache)
    file.write_bytes(b"two")
    os.utime(file, ns=(10**18, 10**18))  # as if untouched: same size and time
    assert fingerprint([file], [], cache) == first
    os.utime(file, ns=(10**18, 10**18 + 1))
    assert fingerprint([file], [], cache) != first


def test_a_broken_or_unwritable_cache_costs_only_time(tmp_path: Path) -> None:
    file, cache = tmp_path / "weights", tmp_path / "cache"
    file.write_bytes(b"one")
    cache.mkdir()
    (cache / "hashes.json").write_text("[not json", encoding="utf-8")
    assert fingerprint([file], [], cache) == fingerprint([file], [], None)
    blocked = tmp_path / "a file, no folder"
    blocked.write_text("", encoding="utf-8")
    assert fingerprint([file], [], blocked) == fingerprint([file], [], None)
