"""Which adapters an engine has loaded, is loading, and is about to free. Engine thread only, except for `read`."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from onward.engine.client import AdapterOutcome, LoadAdapter
from onward.engine.job import Job
from onward.engine.model import AdapterLoader
from onward.errors import SetupError

log = logging.getLogger("onward.engine")


@dataclass(frozen=True, slots=True)
class AdapterRead:
    """What a command to load an adapter has led to: `read` is for the loader, None if there is a `problem`."""

    adapter: str
    read: object = None
    problem: str = ""


def read(loader: AdapterLoader, command: LoadAdapter) -> AdapterRead:
    """Read an adapter. Any thread; slow."""
    try:
        found, contents = loader.read(Path(command.path))
    except SetupError as problem:
        return AdapterRead(command.adapter, problem=str(problem))
    except MemoryError:
        return AdapterRead(command.adapter, problem=f"The memory does not suffice for the adapter {command.path}.")
    except Exception as error:
        log.exception("the adapter %s cannot be read", command.path)
        return AdapterRead(command.adapter, problem=f"The adapter {command.path} cannot be read: {error}")
    if found != command.adapter:
        return AdapterRead(command.adapter, problem=f"The files of the adapter {command.path} have changed.")
    return AdapterRead(command.adapter, contents)


class Adapters:
    """The adapters of an engine, and the jobs that wait for those that are being read. `loader` None: there are none.
    `outcomes` are those of loads that were not reported yet."""

    def __init__(self, loader: AdapterLoader | None) -> None:
        self.loader = loader
        self.outcomes: list[AdapterOutcome] = []
        self._loaded: set[str] = set()
        self._waiting: dict[str, list[Job]] = {}
        self._leaving: set[str] = set()

    def begin(self, adapter: str) -> AdapterLoader | None:
        """An adapter is to be loaded. Returns what has to read it, None if nothing has to."""
        self._leaving.discard(adapter)
        if self.loader is None:
            self.outcomes.append(AdapterOutcome(adapter, "What computes this model computes no adapters."))
        elif adapter in self._loaded:
            self.outcomes.append(AdapterOutcome(adapter))
        elif adapter not in self._waiting:
            self._waiting[adapter] = []
            return self.loader
        return None

    def finish(self, found: AdapterRead) -> list[Job]:
        """Use an adapter that was read. Returns the jobs that waited for it."""
        adapter, problem = found.adapter, found.problem
        if not problem:
            assert self.loader is not None
            try:
                self.loader.add(adapter, found.read)
                self._loaded.add(adapter)
            except MemoryError:
                problem = "The memory does not suffice for the adapter."
        if problem:
            self._leaving.discard(adapter)  # there is nothing to free
        self.outcomes.append(AdapterOutcome(adapter, problem))
        return self._waiting.pop(adapter)

    def has(self, job: Job) -> bool:
        """Whether what a job needs of adapters is loaded."""
        return not job.adapter or job.adapter in self._loaded

    def keep(self, job: Job) -> bool:
        """Have a job wait for its adapter, if that is being read. Returns whether it is."""
        waiting = self._waiting.get(job.adapter)
        if waiting is None:
            return False
        waiting.append(job)
        return True

    def unload(self, adapter: str) -> None:
        """Free an adapter once no job has it."""
        if adapter in self._loaded or adapter in self._waiting:
            self._leaving.add(adapter)

    @property
    def is_any_leaving(self) -> bool:
        return bool(self._leaving)

    def free(self, used: Collection[str]) -> None:
        """Free the adapters that are to be unloaded, except for those that are `used`."""
        assert self.loader is not None
        for adapter in self._leaving & self._loaded - set(used):
            self.loader.remove(adapter)
            self._loaded.discard(adapter)
            self._leaving.discard(adapter)

    def take_outcomes(self) -> list[AdapterOutcome]:
        """Return the outcomes that were not taken before."""
        outcomes, self.outcomes = self.outcomes, []
        return outcomes
