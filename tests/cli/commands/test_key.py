"""`onward key`: what it prints is what a key file accepts."""

from __future__ import annotations

from pathlib import Path

from onward.server.keys import collect_keys, is_generated
from onward.settings import Settings

from ..conftest import onward


def test_a_new_key_is_accepted_by_the_line_that_comes_with_it(tmp_path: Path) -> None:
    made = [onward("key", "new", "alice"), onward("key", "new")]
    key = made[0].stdout.strip()
    assert key.startswith("sk-") and len(key) >= 35
    assert key not in made[0].stderr
    assert all(is_generated(each.stdout.strip()) for each in made)
    path = tmp_path / "keys"
    path.write_text("".join(each.stderr for each in made))
    keys = collect_keys(Settings(api_key_file=path))
    found = [keys.find(each.stdout.strip()) for each in made]
    assert [each and each.name for each in found] == ["alice", ""]


def test_the_digest_of_a_key_comes_from_standard_input(tmp_path: Path) -> None:
    result = onward("key", "digest", "bob", stdin="sk-mine\n")
    path = tmp_path / "keys"
    path.write_text(result.stdout)
    found = collect_keys(Settings(api_key_file=path)).find("sk-mine")
    assert found is not None and found.name == "bob"
    assert "sk-mine" not in result.stdout


def test_what_a_key_file_refuses_is_not_printed() -> None:
    for result in (onward("key", "new", "two words"), onward("key", "digest", stdin="two words\n")):
        assert result.exit_code == 2
        assert "must" in result.stderr
        assert result.stdout == ""
