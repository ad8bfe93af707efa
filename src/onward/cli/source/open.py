"""Opens the source of a session: the server that flags or environment name, else a model in this process."""

from __future__ import annotations

from collections.abc import Mapping

from onward.cli.output.terminal import note
from onward.cli.session import ServerConnection
from onward.cli.source.base import Source
from onward.network import without_secrets


def open_source(
    connection: ServerConnection, models: list[str], *, settings: Mapping[str, str] | None = None, quiet: bool = False
) -> Source:
    """Open the session's source. Slow for a model in this process: it is loaded.

    `settings`, texts by name, are for a model in this process. A terminal shows which server is used and, unless
    `quiet`, which requests are retried. Raises SetupError, and ConnectionFailed for an invalid URL.
    """
    if connection.base_url is not None:
        from onward.cli.source.http import HttpSource

        note(f"Using {without_secrets(connection.base_url)} ({connection.origin})")
        return HttpSource(connection, quiet=quiet)
    from onward.cli.source.local import open_local

    return open_local(models, settings or {})


def unknown_models(connection: ServerConnection, models: list[str]) -> dict[str, str]:
    """Return the models that this process cannot load, with the reason; empty for a server.

    Blocks; may download models. Raises SetupError for a broken model.
    """
    if connection.base_url is not None:
        return {}
    from onward.cli.source.local import unknown_models

    return unknown_models(models)
