"""Private files: what is refused, and what a failed write leaves behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from onward.private_files import private_folder

needs_owners = pytest.mark.skipif(sys.platform == "win32", reason="files have no owners there")


def write(folder: Path, name: str, data: bytes) -> None:
    with private_folder(folder) as opened, opened.replacing(name, "part") as file:
        file.write(data)


def read(folder: Path, name: str, max_bytes: int = 100) -> bytes:
    with private_folder(folder) as opened, opened.reader(name, max_bytes) as file:
        return file.read()


@needs_owners
def test_folder_and_files_are_made_for_the_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "one" / "two"
    write(folder, "a", b"data")
    assert read(folder, "a") == b"data"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "a").stat().st_mode & 0o777 == 0o600


@needs_owners
@pytest.mark.parametrize("mode", [0o701, 0o710, 0o720, 0o755, 0o777])
def test_a_folder_that_others_may_use_is_refused_with_what_to_do(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(PermissionError, match="chmod 700"):
        write(tmp_path, "a", b"data")
    assert tmp_path.stat().st_mode & 0o777 == mode and not list(tmp_path.iterdir())


@needs_owners
def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="another user"):
        write(tmp_path, "a", b"data")


@needs_owners
def test_links_are_not_followed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    write(folder, "a", b"data")
    elsewhere.write_bytes(b"other")
    (folder / "b").symlink_to(elsewhere)
    with pytest.raises(OSError):
        read(folder, "b")
    with private_folder(folder) as opened:
        opened.set_time("b", 10**18)
        assert dict(opened.files())["b"].st_mtime_ns == 10**18 != elsewhere.stat().st_mtime_ns
        opened.remove("b")
    assert elsewhere.read_bytes() == b"other"
    (tmp_path / "linked").symlink_to(folder)
    with pytest.raises(PermissionError, match="link"):
        read(tmp_path / "linked", "a")


@needs_owners
def test_what_is_not_a_file_of_the_users_own_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, "a", b"data")
    with pytest.raises(PermissionError):
        read(folder, "a", max_bytes=3)
    (folder / "a").chmod(0o622)
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    for name in ("a", "pipe", "folder"):
        with pytest.raises(PermissionError):
            read(folder, name)
    with pytest.raises(FileNotFoundError):
        read(folder, "none")


def test_nothing_is_left_of_a_write_that_fails(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write(folder, "a", b"old")
    with (
        pytest.raises(OSError, match="full"),
        private_folder(folder) as opened,
        opened.replacing("a", "part") as file,
    ):
        file.write(b"ne")
        raise OSError("full")
    assert read(folder, "a") == b"old" and [path.name for path in folder.iterdir()] == ["a"]
