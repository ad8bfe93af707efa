"""From Settings to the team of a server: its database, keys and prices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import SetupError
from onward.folders import state_folder
from onward.settings import Settings

if TYPE_CHECKING:
    from onward.service.request_log import RequestLog
    from onward.service.store import Store
    from onward.service.team import Team


IN_DATABASE = "database"
"""The value of log_requests that names no folder."""


DEFAULT_KEEP_SECONDS = 30 * 86_400


def has_database(settings: Settings) -> bool:
    return settings.database is not None or settings.data_dir is not None


def open_database(settings: Settings, *, creates: bool = True) -> Store:
    """Open the database of the settings. Raises SetupError, also where they name none."""
    from sqlalchemy import URL, make_url

    from onward.service.store import open_store

    if settings.database is not None:
        return open_store(make_url(settings.database), creates=creates)
    if settings.data_dir is None:
        raise SetupError(
            "There is no database: name one with --database URL, or --data-dir PATH for a file in that folder "
            "(ONWARD_DATABASE, ONWARD_DATA_DIR)."
        )
    return open_store(URL.create("sqlite", database=str(settings.data_dir / "onward.db")), creates=creates)


def open_team(settings: Settings) -> Team | None:
    """Return the team of a server, None without a database. Raises SetupError."""
    if not has_database(settings):
        for name in ("price", "keep_ledger", "model_folder"):  # only keys of a database are admin keys
            if getattr(settings, name):
                raise SetupError(
                    f"--{name.replace('_', '-')} needs a database: pass --data-dir PATH or --database URL."
                )
        return None
    from onward.service.prices import prices_of
    from onward.service.store import DatabaseAway
    from onward.service.team import Team

    store = open_database(settings)
    try:
        return Team(
            store,
            data_folder(settings) / "spool",
            prices_of(settings.price),
            keep_seconds=settings.keep_ledger,
            keep_requests_seconds=keep_requests(settings),
            may_add_models=bool(settings.model_folder),
        )
    except BaseException as problem:
        store.close()
        if isinstance(problem, DatabaseAway):
            raise SetupError(f"The database cannot be used: {problem}") from None
        raise


def logged_folder(settings: Settings) -> Path | None:
    """Return the folder of the log of requests, None where there is none or it is in the database."""
    return None if settings.log_requests in (None, IN_DATABASE) else Path(settings.log_requests or "")


def keep_requests(settings: Settings) -> int:
    return DEFAULT_KEEP_SECONDS if settings.keep_requests is None else settings.keep_requests


def open_request_log(settings: Settings, team: Team | None) -> RequestLog | None:
    """Return the log of requests, None where none is wanted. Raises SetupError."""
    if settings.log_requests is None:
        if settings.keep_requests is not None and team is None:  # a database may have those of earlier times
            raise SetupError("--keep-requests is for requests that are kept: pass --log-requests too, or leave it out.")
        return None
    if (folder := logged_folder(settings)) is not None:
        from onward.service.request_log import RequestFolder

        return RequestFolder(folder, f"{os.getpid()}", keep_requests(settings))
    if team is None:
        raise SetupError("--log-requests database needs a database: pass --data-dir PATH or --database URL.")
    from onward.service.request_table import RequestTable

    return RequestTable(team.log_request)


def data_folder(settings: Settings) -> Path:
    """Return where a server keeps what its database does not have yet: the data folder, else that of the database's
    file, else one of the user's."""
    if settings.data_dir is not None:
        return settings.data_dir
    from sqlalchemy import make_url

    url = make_url(settings.database or "")
    if url.get_backend_name() == "sqlite" and url.database:
        return Path(url.database).absolute().parent
    return state_folder()
