"""A command's database and log of requests, from the same flags, variables and files as those of `onward serve`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onward.cli.settings_command import setting, setting_flag
from onward.errors import SetupError
from onward.settings import Settings, resolve

if TYPE_CHECKING:
    from onward.service.request_log import LoggedRequest
    from onward.service.store import Store

NAMES = ("database", "data_dir")


def database_flags() -> list[click.Parameter]:
    config = click.Option(
        ["--config"], type=click.Path(path_type=Path), metavar="PATH", help="Settings file.  [ONWARD_CONFIG]"
    )
    return [*(setting_flag(setting(name)) for name in NAMES), config]


def resolved_settings(given: dict[str, Any], names: Iterable[str] = NAMES) -> Settings:
    """Return the settings that flags of these names, --config, the environment and files choose. Raises SetupError."""
    flags = {name: given[name] for name in names if given[name] is not None}
    return resolve(flags, config=given["config"]).settings


def log_flags() -> list[click.Parameter]:
    """Return the flags that name a log of requests."""
    words = "The log of requests, as the server's setting names it: a folder, or the database."
    return [setting_flag(setting("log_requests"), words), *database_flags()]


def read_log(given: dict[str, Any]) -> Iterator[LoggedRequest]:
    """Yield the requests of the log that the flags of `log_flags`, environment and files name. Raises SetupError."""
    from onward.compose.team import logged_folder
    from onward.service.request_log import read_folder

    settings = resolved_settings(given, (*NAMES, "log_requests"))
    if settings.log_requests is None:
        raise SetupError("There is no log of requests: name it with --log-requests FOLDER|database, as for the server.")
    if (folder := logged_folder(settings)) is not None:
        yield from read_folder(folder)
        return
    from onward.service.request_table import read_requests

    with open_named(given) as store:
        yield from read_requests(store)


@contextmanager
def open_named(given: dict[str, Any], *, creates: bool = False) -> Iterator[Store]:
    """Open the database of a command. Raises SetupError if it cannot be used, also while the context lasts."""
    from onward.compose.team import open_database
    from onward.service.store import DatabaseAway

    store = open_database(resolved_settings(given), creates=creates)
    try:
        yield store
    except DatabaseAway as problem:
        raise SetupError(f"The database cannot be used: {problem}") from None
    finally:
        store.close()
