"""Opens who answers: the address that flags or environment give, else a model in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.cli.output.terminal import note
from onward.cli.session import Connection

if TYPE_CHECKING:
    from onward.cli.source.base import Source


def open_source(connection: Connection, models: list[str], *, quiet: bool = False) -> Source:
    """Slow for a model in this process; tells a terminal where it goes, and what is tried again unless `quiet`.

    Raises SetupError.
    """
    if connection.base_url is not None:
        from onward.cli.source.http import HttpSource

        note(f"Asking {connection.base_url} ({connection.origin})")
        return HttpSource(connection, quiet=quiet)
    from onward.cli.source.local import open_local

    return open_local(models)


def unknown_models(connection: Connection, models: list[str]) -> dict[str, str]:
    """Those of the models that this process cannot have, with the reason; a server knows its own.

    May download; blocks. Raises SetupError for a broken model.
    """
    if connection.base_url is not None:
        return {}
    from onward.cli.source.local import unknown_models

    return unknown_models(models)
