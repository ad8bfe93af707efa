"""`onward key`: what it prints is what a key file accepts."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest

from onward.server.keys import collect_keys
from onward.service import keys as stored_keys
from onward.service.grant import is_generated
from onward.service.store import Store
from onward.settings import Settings

from ..conftest import onward


def test_a_new_key_is_accepted_by_the_line_that_comes_with_it(tmp_path: Path) -> None:
    made = [onward("key", "new", "alice"), onward("key", "new")]
    key = made[0].stdout.strip()
    assert key.startswith("sk-") and len(key) >= 35
    assert key not in made[0].stderr
    assert all(is_generated(each.stdout.strip()) for each in made)
    path = tmp_path / "keys"
    path.write_text("".join(each.stderr for each in made), encoding="utf-8")
    keys = collect_keys(Settings(api_key_file=path))
    found = [keys.find(each.stdout.strip()) for each in made]
    assert [each and each.name for each in found] == ["alice", ""]


def test_the_digest_of_a_key_comes_from_standard_input(tmp_path: Path) -> None:
    result = onward("key", "digest", "bob", stdin="sk-mine\n")
    path = tmp_path / "keys"
    path.write_text(result.stdout, encoding="utf-8")
    found = collect_keys(Settings(api_key_file=path)).find("sk-mine")
    assert found is not None and found.name == "bob"
    assert "sk-mine" not in result.stdout


def test_what_a_key_file_refuses_is_not_printed() -> None:
    for result in (onward("key", "new", "two words"), onward("key", "digest", stdin="two words\n")):
        assert result.exit_code == 2
        assert "must" in result.stderr
        assert result.stdout == ""


def key_of(folder: Path, *words: str) -> str:
    made = onward("key", "new", *words, "--data-dir", str(folder))
    assert made.exit_code == 0, made.stderr
    return made.stdout.strip()


def test_a_key_of_a_database_is_made_shown_changed_rotated_and_revoked(tmp_path: Path) -> None:
    where = ("--data-dir", str(tmp_path))
    secret = key_of(tmp_path, "alice", "--tokens-per-day", "100", "--cost-per-month", "2.5", "--allow-model", "toy")
    assert is_generated(secret)
    (shown,) = json.loads(onward("key", "list", *where, "--format", "json").stdout)["data"]
    assert (shown["name"], shown["tokens_per_day"], shown["cost_per_month"], shown["models"]) == (
        *("alice", 100, 2.5, ["toy"]),
    )
    assert shown["priority"] == 1
    words = ("--tokens-per-day", "any", "--parallel-requests", "3", "--allow-model", "any", "--cost-per-day", "0.00001")
    more = ("--expires", "2999-01-31T12:00:00", "--priority", "4")
    assert onward("key", "set", "alice", *words, *more, *where).exit_code == 0
    found = json.loads(onward("key", "show", "alice", *where, "--format", "json").stdout)
    assert (found["tokens_per_day"], found["parallel_requests"], found["models"]) == (None, 3, None)
    assert found["priority"] == 4
    assert found["expires"] is not None and found["running"] == found["tokens_today"] == 0
    assert "alice" in onward("key", "list", *where, "--format", "text").stdout
    rotated = onward("key", "rotate", "alice", "--overlap", "0", *where)
    assert is_generated(rotated.stdout.strip()) and rotated.stdout.strip() != secret
    assert onward("key", "revoke", "alice", *where).exit_code == 0
    assert json.loads(onward("key", "show", "alice", *where, "--format", "json").stdout)["state"] == "revoked"
    done = json.loads(onward("key", "audit", "alice", *where, "--format", "json").stdout)["data"]
    assert sorted(entry["action"] for entry in done) == ["new", "revoke", "rotate", "set"]
    details = {entry["action"]: entry["detail"] for entry in done}
    assert {"tokens_per_day=any", "models=any", "cost_per_day=0.00001", "expires=2999-01-31T12:00:00Z"} <= {
        *details["set"].split(", ")
    }
    assert re.fullmatch(r"old secrets until 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", details["rotate"])
    assert onward("key", "forget", "alice", "--yes", *where).exit_code == 0
    gone = onward("key", "show", "alice", *where)
    assert gone.exit_code == 1 and "There is no key named alice" in gone.stderr


def test_forgetting_a_key_empties_the_prefix_cache_on_the_disk(tmp_path: Path) -> None:
    key_of(tmp_path, "alice")
    cache = tmp_path / "cache"
    where = ("--data-dir", str(tmp_path), "--prefix-cache-dir", str(cache))
    assert onward("key", "forget", "nobody", "--yes", *where).exit_code == 1 and not cache.exists()
    cache.mkdir(mode=0o700)
    for name in ("a.kv", "b.tmp", "mine"):
        (cache / name).write_bytes(b"x")
    assert onward("key", "forget", "alice", "--yes", *where).exit_code == 0
    assert sorted(path.name for path in cache.iterdir()) == ["lock", "mine"]
    key_of(tmp_path, "bob")
    cache.chmod(0o755)
    failed = onward("key", "forget", "bob", "--yes", *where)
    assert failed.exit_code == 1 and "could not be removed: others may use it" in failed.stderr
    assert onward("key", "show", "bob", *where[:2]).exit_code == 0, "the command can be repeated"


def test_an_interrupted_forgetting_leaves_nothing_that_only_the_key_could_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_of(tmp_path, "alice")
    where = ("--data-dir", str(tmp_path))
    id = json.loads(onward("key", "show", "alice", *where, "--format", "json").stdout)["id"]
    (tmp_path / "log" / id).mkdir(parents=True)
    real = stored_keys.forget_in_pieces

    def interrupted(store: Store, name: str) -> None:
        real(store, name)
        raise KeyboardInterrupt

    monkeypatch.setattr(stored_keys, "forget_in_pieces", interrupted)
    done = onward("key", "forget", "alice", "--yes", *where, "--log-requests", str(tmp_path / "log"))
    assert done.exit_code != 0 and not list((tmp_path / "log").iterdir())


def test_a_key_is_written_to_a_new_file_of_its_user(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert key_of(tmp_path, "alice", "--file", str(path)) == ""
    assert is_generated(path.read_text(encoding="utf-8").strip()) and path.stat().st_mode & 0o077 == 0
    again = onward("key", "new", "bob", "--file", str(path), "--data-dir", str(tmp_path))
    assert again.exit_code == 1 and "exists" in again.stderr
    assert [key["name"] for key in json.loads(onward("key", "list", "--data-dir", str(tmp_path)).stdout)["data"]] == [
        "alice"
    ], "a key that could not be shown is not stored"


def test_a_file_of_a_key_that_the_disk_has_no_room_for_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, mode: str) -> None:
        os.close(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fdopen", full)
    made = onward("key", "new", "alice", "--file", str(tmp_path / "key"))
    assert made.exit_code == 1 and "No space left on device" in made.stderr and not (tmp_path / "key").exists()


def test_limits_need_a_database_and_possible_values(tmp_path: Path) -> None:
    for limit in (["--tokens-per-day", "5"], ["--stored-bytes", "1GB"], ["--priority", "2"]):
        assert "need a database" in onward("key", "new", "alice", *limit).stderr
    assert "There is no database" in onward("key", "list").stderr
    where = ("--data-dir", str(tmp_path))
    for words in (
        ("--tokens-per-day", "0"),
        ("--tokens-per-day", "many"),
        ("--cost-per-day", "1.0000001"),
        ("--expires", "soon"),
        ("--expires", "999999w"),
        ("--expires", "9999-12-31T23:59:59-23:59"),
        ("--expires", "0001-01-01T00:00:00+23:59"),
        ("--requests-per-minute", "-1"),
    ):
        refused = onward("key", "new", "alice", *words, *where)
        assert refused.exit_code == 2 and "must be" in refused.stderr, words
    for wrong in ("0", "101", "high"):
        assert onward("key", "new", "alice", "--priority", wrong, *where).exit_code == 2
    assert "needs a name" in onward("key", "new", *where).stderr
    assert not (tmp_path / "onward.db").exists()


def test_a_database_is_backed_up_checked_and_restored(tmp_path: Path) -> None:
    key_of(tmp_path / "a", "alice")
    file, a, b = str(tmp_path / "copy.gz"), ("--data-dir", str(tmp_path / "a")), ("--data-dir", str(tmp_path / "b"))
    assert onward("database", "backup", file, *a).exit_code == 0
    assert onward("database", "restore", file, *b).exit_code == 0
    checked = onward("database", "check", *b)
    assert (checked.exit_code, checked.stderr) == (0, "0 problems found.\n")
    lists = [onward("key", "list", *where, "--format", "json").stdout for where in (a, b)]
    assert lists[0] == lists[1]
    assert onward("database", "check", "--data-dir", str(tmp_path / "none")).exit_code == 1
