"""The loop of an engine: commands in through a mailbox, step after step while there are jobs. Starts no thread."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING

from onward.engine.client import Cancel, CancelChoice, Command, Stop, Submit
from onward.engine.events import Event, Failed
from onward.engine.job import Job

if TYPE_CHECKING:  # it imports the sampler, which takes long
    from onward.engine.step import Engine

log = logging.getLogger("onward.engine")

Publish = Callable[[], None]
"""Publishes what is new, `EngineLoop.take_events` included. Called whenever a step begins to compute, with the events
of the step before, and when the engine becomes idle."""


class EngineLoop:
    """Runs an engine for whoever owns the thread: `thread.EngineThread`, or the main thread of an engine process.

    `mailbox` takes commands on any thread. Everything else belongs to the thread that calls `run`.
    """

    def __init__(self, engine: Engine, mailbox: queue.SimpleQueue[Command] | None = None) -> None:
        self.engine = engine
        self.mailbox: queue.SimpleQueue[Command] = queue.SimpleQueue() if mailbox is None else mailbox
        self.is_stopping = False
        self.num_taken = 0
        """Jobs taken from the mailbox."""

    def run(self, publish: Publish) -> None:
        """Execute commands and run steps until Stop. Raises whatever ends the engine."""
        while not self.is_stopping:
            if self.engine.idle:
                publish()
            self._empty_mailbox(wait=self.engine.idle)
            if not self.is_stopping and not self.engine.idle:
                self.engine.step(publish)

    def take_events(self) -> list[Event]:
        """Return the events that were not taken before, in order."""
        events, self.engine.undelivered = self.engine.undelivered, []
        return events

    def drain(self) -> list[Command]:
        """Take all commands out of the mailbox without executing them."""
        commands: list[Command] = []
        while True:
            try:
                commands.append(self.mailbox.get_nowait())
            except queue.Empty:
                return commands

    def _empty_mailbox(self, *, wait: bool) -> None:
        """Execute all commands in the mailbox. With `wait`, wait for the first one."""
        if wait:
            self._execute(self.mailbox.get())
        while True:
            try:
                command = self.mailbox.get_nowait()
            except queue.Empty:
                return
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case Submit(jobs):
                for job in jobs:
                    self._add(job)
            case Cancel(request):
                self.engine.cancel(request)
            case CancelChoice(job_id, choice):
                self.engine.cancel_choice(job_id, choice)
            case Stop():
                self.is_stopping = True

    def _add(self, job: Job) -> None:
        """Queue a job; one that the engine cannot run fails alone."""
        try:
            self.engine.add(job)
        except Exception as error:
            log.exception("job %d cannot be run", job.id)
            failed = Failed(job.id, "rejected", f"the engine cannot run the job: {error}")
            self.engine.undelivered.append(failed)
        self.num_taken += 1
