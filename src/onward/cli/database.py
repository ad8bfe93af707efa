"""The database of a command, from the same flags, variables and files as those of `onward serve`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onward.cli.settings_command import setting, setting_flag
from onward.errors import SetupError
from onward.settings import Settings, resolve

if TYPE_CHECKING:
    from onward.service.store import Store

NAMES = ("database", "data_dir")


def database_flags() -> list[click.Parameter]:
    config = click.Option(
        ["--config"], type=click.Path(path_type=Path), metavar="PATH", help="Settings file.  [ONWARD_CONFIG]"
    )
    return [*(setting_flag(setting(name)) for name in NAMES), config]


def resolved_settings(given: dict[str, Any]) -> Settings:
    """Return the settings that the flags of `database_flags`, the environment and files choose. Raises SetupError."""
    flags = {name: given[name] for name in NAMES if given[name] is not None}
    return resolve(flags, config=given["config"]).settings


@contextmanager
def open_named(given: dict[str, Any], *, creates: bool = False) -> Iterator[Store]:
    """Open the database of a command. Raises SetupError, also while it is open, where it cannot be used."""
    from onward.compose.team import open_database
    from onward.service.store import DatabaseAway

    store = open_database(resolved_settings(given), creates=creates)
    try:
        yield store
    except DatabaseAway as problem:
        raise SetupError(f"The database cannot be used: {problem}") from None
    finally:
        store.close()
