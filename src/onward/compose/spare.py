"""The process of the first engine, started before it is known for certain what it is to load."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from onward.engines.child.child import SpareProcess
from onward.errors import SetupError
from onward.settings import Settings, served_names, upstreams_of

WORKER = (sys.executable, "-P", "-m", "onward.compose.worker")
"""The program of an engine's process. -P: a folder named onward in the working directory is not imported."""


@contextmanager
def spare_process(settings: Settings) -> Iterator[SpareProcess | None]:
    """Start the process of the first engine, if `compose` will use one, and have it load the model that it will
    probably need: it does so while the caller imports a server, checks the model's files and loads the tokenizer. The
    process starts before the modules are imported that find the model.

    Call it on the main thread; what `compose` did not take ends with the context. Raises SetupError.
    """
    if settings.engine_process == "off" or settings.cluster or _is_elsewhere(settings):
        yield None
        return
    with SpareProcess(WORKER) as spare:
        if (configuration := _foreseen(settings)) is not None:
            spare.configure(configuration)
        yield spare


def _is_elsewhere(settings: Settings) -> bool:
    """Return whether something else computes all models. Raises SetupError."""
    elsewhere = set(upstreams_of(settings))
    if settings.engine:
        from onward.compose.programs import wanted_engines

        elsewhere |= wanted_engines(settings).keys()
    return elsewhere.issuperset(served_names(settings))


def _foreseen(settings: Settings) -> bytes | None:
    """Return how the first engine is configured, if that follows from the settings and what is on this machine. What
    is wrong with the model is found later, where it is checked."""
    if upstreams_of(settings) or settings.engine or settings.draft:
        return None
    from onward.compose.engine import EngineConfig
    from onward.models.resolve import resolve, split_adapter

    name, _ = split_adapter(settings.model[0])
    try:
        found = resolve(name, allow_download=False, cache_dir=settings.cache_dir, must_be_computed=False)
        return EngineConfig.create(found, settings).encode()
    except (SetupError, OSError):
        return None
