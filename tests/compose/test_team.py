"""The folder of a server's spool, and where it logs requests."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward.compose.team import data_folder, open_request_log, open_team
from onward.errors import SetupError
from onward.models.registry import ListedModel
from onward.service import store
from onward.settings import Settings

REMOTE = "postgresql://onward@db.example.com/onward"


def test_rows_wait_in_the_data_folder_next_to_the_file_or_in_a_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_folder(Settings(data_dir=tmp_path, database=REMOTE)) == tmp_path
    assert data_folder(Settings(database=f"sqlite:///{tmp_path}/team/a.db")) == tmp_path / "team"
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder(Settings(database=REMOTE)) == tmp_path / ".local/state/onward"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert data_folder(Settings(database=REMOTE)) == tmp_path / "state/onward"
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}/own:{tmp_path}/other")
    assert data_folder(Settings(database=REMOTE)) == tmp_path / "own"


def test_containers_and_the_unit_keep_them(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    assert "XDG_STATE_HOME=/data" in (root / "Dockerfile").read_text(encoding="utf-8")
    assert '"data:/data"' in (root / "deploy/stack/compose.yaml").read_text(encoding="utf-8")
    assert "StateDirectory=onward\n" in (root / "deploy/systemd/onward.service").read_text(encoding="utf-8")


def test_a_log_in_a_database_needs_one(tmp_path: Path) -> None:
    assert open_request_log(Settings(), None) is None
    with pytest.raises(SetupError, match="--data-dir"):
        open_request_log(Settings(log_requests="database"), None)
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="cannot be used"):
        open_request_log(Settings(log_requests=str(tmp_path / "file" / "log")), None)


def test_a_database_that_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that root has made, say, for a server that runs as another user."""
    settings = Settings(data_dir=tmp_path)
    made = open_team(settings)
    assert made is not None
    made.close()
    configure = store._configure_sqlite

    def read_only(connection: Any, record: object) -> None:
        configure(connection, record)
        connection.execute("PRAGMA query_only=ON").close()

    monkeypatch.setattr(store, "_configure_sqlite", read_only)
    with pytest.raises(SetupError, match=r"cannot be used: .*readonly database; its file and folder must be writable"):
        open_team(settings)


@pytest.mark.parametrize("may_be_added", [False, True])
def test_a_price_may_be_for_a_model_of_a_model_folder(tmp_path: Path, may_be_added: bool) -> None:
    prices, folders = (("later", 2, 3, 1),), (tmp_path,) if may_be_added else ()
    team = open_team(Settings(data_dir=tmp_path / "data", price=prices, model_folder=folders))
    assert team is not None
    try:
        with nullcontext() if may_be_added else pytest.raises(SetupError, match="--price names later"):
            team.use_models([ListedModel(id="toy", created=0, owned_by="")])
    finally:
        team.close()


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"keep_ledger": 9}, "keep-ledger"),
        ({"price": (("toy", 2, 3, 1),)}, "price"),
        ({"model_folder": (Path(),)}, "model-folder"),
    ],
)
def test_settings_of_a_ledger_and_of_admin_keys_need_a_database(changes: dict[str, Any], flag: str) -> None:
    with pytest.raises(SetupError, match=f"^--{flag} needs a database: pass --data-dir PATH or --database URL"):
        open_team(Settings(**changes))


def test_how_long_requests_are_kept_needs_a_log_or_a_database_that_may_have_some(tmp_path: Path) -> None:
    asked = Settings(keep_requests=9)
    with pytest.raises(SetupError, match=r"^--keep-requests is for requests that are kept: pass --log-requests too"):
        open_request_log(asked, None)
    team = open_team(replace(asked, data_dir=tmp_path))
    assert team is not None
    team.close()
    assert open_request_log(asked, team) is None
