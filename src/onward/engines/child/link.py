"""A link to one running engine that may be lost: what a process provides (`child`), and what supervision uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from onward.engine.client import AdapterOutcome, Command, EngineInfo
from onward.engine.events import Event
from onward.engine_load import EngineLoad


class StepReport(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What an engine reports once per step: as its next step begins to compute, or as it becomes idle.

    `events` are those of the step before, in order. `admitted` are the ids of the jobs whose first computation begins
    with this step. `is_idle`: no step follows until something is submitted; otherwise the next report is due when the
    step that begins now has ended, which makes the report a heartbeat. `outcomes` are those of loads of adapters.
    """

    events: list[Event]
    load: EngineLoad
    admitted: list[int] = []
    is_idle: bool = False
    outcomes: list[AdapterOutcome] = []


OnReport = Callable[[StepReport], None]
"""Receives each report, in order, on one thread of the link."""
OnLost = Callable[[str], None]
"""Called once, on the thread of the reports and after the last one, when the engine is lost: with the reason, a
sentence for the log. Not called after `close`."""


class EngineLink(Protocol):
    """One running engine, from ready until it is lost or closed. All members may be used on any thread."""

    @property
    def info(self) -> EngineInfo:
        """What the engine serves."""
        ...

    def send(self, command: Command) -> None:
        """Send a command. Returns soon; ignored once the engine is lost."""
        ...

    def kill(self, reason: str) -> None:
        """End the engine at once, whatever it is doing. It is then lost for that reason. Returns soon."""
        ...

    def close(self) -> None:
        """Stop the engine, and wait until its memory is freed."""
        ...


class Launch(Protocol):
    """Starts an engine, again after it was lost. Blocks until it is ready to receive commands.

    Called on a thread that lives as long as the engine. Raises SetupError if the engine cannot start,
    ModelFolderError if that is because of the model's files.
    """

    def __call__(self, on_report: OnReport, on_lost: OnLost) -> EngineLink: ...
