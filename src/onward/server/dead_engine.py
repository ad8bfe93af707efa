"""The end of a server whose engine is dead: what a supervisor such as systemd is to notice and act on."""

from __future__ import annotations

import asyncio
import logging

from onward.backends.base import Backend

log = logging.getLogger("onward.server")

EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h. Not zero, so that `Restart=on-failure` and the like start the server again."""
POLL_SECONDS = 0.25


async def wait_for_dead_engine(backend: Backend) -> None:
    """Return when an engine has crashed that is not started again."""
    while backend.health().state != "dead":
        await asyncio.sleep(POLL_SECONDS)
    models = backend.health().models
    names = ", ".join(name for name, model in models.items() if model.state == "dead")
    log.critical("the engine of %s is dead: the server ends with exit code %d, to be restarted", names, EXIT_CODE)
