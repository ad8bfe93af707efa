"""`onward serve`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from onward.cli.settings_command import SettingsCommand
from onward.settings import Resolved, Settings

if TYPE_CHECKING:
    from onward.backends.base import Backend, LiveModels


def run(resolved: Resolved) -> None:
    from onward.residency import collect_later

    collect_later()  # until `serve` has frozen what it keeps
    from onward.compose.spare import spare_process

    with spare_process(resolved.settings) as spare:
        from onward.cli.output.progress import loading
        from onward.compose import compose
        from onward.compose.team import open_request_log, open_team
        from onward.compose.telemetry import open_tracer
        from onward.server.run import serve

        status = serve(
            resolved.settings,
            partial(compose, own_process=True, spare=spare),
            show_progress=loading,
            announcement=resolved.announcement,
            open_team=open_team,
            open_request_log=open_request_log,
            open_models=_open_models,
            again=resolved.again if resolved.file is not None else None,
            open_tracer=open_tracer,
        )
    click.get_current_context().exit(status)


def _open_models(settings: Settings, backend: Backend) -> LiveModels | None:
    """Import late what is needed when the models are loaded."""
    from onward.compose.live_models import open_models

    return open_models(settings, backend)


HELP = """Serve the Completions API over HTTP.

Ready when GET /health answers 200. Every flag may also be given in the environment, under the name in brackets, or in
onward.toml.

\b
onward serve                        the built-in model, at http://127.0.0.1:8000
onward serve smollm2 --port 8123    a real small model (98 MB, downloaded once)
onward serve ./model.gguf --host 0.0.0.0 --api-key-file keys.txt
"""

command = SettingsCommand(
    "serve",
    callback=run,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
