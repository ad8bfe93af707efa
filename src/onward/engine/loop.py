"""The loop of an engine: commands in through a mailbox, step after step while there are jobs. Starts no thread."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from onward.constraints.errors import GrammarError
from onward.engine.adapters import AdapterRead, Adapters, read
from onward.engine.client import (
    AdapterOutcome,
    Cancel,
    CancelChoice,
    Command,
    LoadAdapter,
    Stop,
    Submit,
    UnloadAdapter,
)
from onward.engine.events import Event, Failed
from onward.engine.job import Job
from onward.fair_pool import FairPool

if TYPE_CHECKING:  # it imports the sampler, which takes long
    from onward.engine.block_reader import Restore
    from onward.engine.step import Engine

log = logging.getLogger("onward.engine")

Publish = Callable[[], None]
"""Publishes what is new, `EngineLoop.take_events` included. Called whenever a step begins to compute, with the events
of the step before, and when the engine becomes idle."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The grammar of a job has been compiled, or cannot be."""

    job: Job


@dataclass(frozen=True, slots=True)
class Restored:
    """Blocks of a prefix have been read from the disk, or cannot be."""

    restore: Restore


Mail = Command | Prepared | Restored | AdapterRead
"""What is in the mailbox of an engine."""


class EngineLoop:
    """Runs an engine for whoever owns the thread: `thread.EngineThread`, or the main thread of an engine process.

    `mailbox` takes commands on any thread. Everything else belongs to the thread that calls `run`. Grammars that are
    not known yet are compiled on a thread of their own, one after the other, while other jobs run; adapters, and blocks
    of prompts from the disk, are read in the same way.
    """

    def __init__(self, engine: Engine, mailbox: queue.SimpleQueue[Mail] | None = None) -> None:
        self.engine = engine
        self.mailbox: queue.SimpleQueue[Mail] = queue.SimpleQueue() if mailbox is None else mailbox
        self.is_stopping = False
        self.preparing: dict[int, Job] = {}
        """The jobs that wait for their adapters, their grammars, or for blocks of their prompts, by id."""
        self._adapters = Adapters(engine.adapters)
        self._compiler = FairPool("onward-grammars", max_threads=2, max_per_owner=1)
        self.num_taken = 0
        """Jobs taken from the mailbox."""

    def run(self, publish: Publish) -> None:
        """Execute commands and run steps until Stop. Raises whatever ends the engine."""
        try:
            while not self.is_stopping:
                if self._adapters.is_any_leaving:
                    self._free_adapters()
                if self.engine.idle:
                    publish()
                self._empty_mailbox(wait=self.engine.idle)
                self._add_overdue()
                if not self.is_stopping and not self.engine.idle:
                    self.engine.step(publish)
        finally:
            self._compiler.close()

    def save(self) -> None:
        """Keep the prefix cache for the next engine, if there is a disk for it: after `run` has returned, before the
        engine is closed. All jobs end. May take seconds."""
        for request in {sequence.job.request for sequence in self.engine.scheduler.sequences()}:
            self.engine.cancel(request)
        if self.engine.disk is not None:
            self.engine.disk.save()

    def take_events(self) -> list[Event]:
        """Return the events that were not taken before, in order."""
        events, self.engine.undelivered = self.engine.undelivered, []
        return events

    def take_outcomes(self) -> list[AdapterOutcome]:
        """Return the outcomes of loads of adapters that were not taken before, in order."""
        return self._adapters.take_outcomes()

    def drain(self) -> list[Mail]:
        """Take all commands out of the mailbox without executing them."""
        commands: list[Mail] = []
        while True:
            try:
                commands.append(self.mailbox.get_nowait())
            except queue.Empty:
                return commands

    def _empty_mailbox(self, *, wait: bool) -> None:
        """Execute all commands in the mailbox. With `wait`, wait for the first one, or until jobs have waited too long
        for a disk."""
        if wait:
            try:
                disk = self.engine.disk
                self._execute(self.mailbox.get(timeout=None if disk is None else disk.poll_seconds))
            except queue.Empty:
                return
        while True:
            try:
                command = self.mailbox.get_nowait()
            except queue.Empty:
                return
            self._execute(command)

    def _execute(self, command: Mail) -> None:
        match command:
            case Submit(jobs):
                for job in jobs:
                    self._add_or_prepare(job)
            case Prepared(job):
                if self.preparing.pop(job.id, None) is not None:  # not cancelled
                    self._restore_or_add(job)
            case Restored(restore):
                self._finish_restore(restore)
            case LoadAdapter():
                if (loader := self._adapters.begin(command.adapter)) is not None:
                    self._compiler.submit("adapters", lambda: self.mailbox.put(read(loader, command)))
            case AdapterRead():
                for job in self._adapters.finish(command):
                    if self.preparing.pop(job.id, None) is not None:
                        self._add_or_prepare(job)
            case UnloadAdapter(adapter):
                self._adapters.unload(adapter)
            case Cancel(request):
                self._cancel_preparing(request)
                self.engine.cancel(request)
            case CancelChoice(job_id, choice):
                self.engine.cancel_choice(job_id, choice)
            case Stop():
                self.is_stopping = True

    def _add_or_prepare(self, job: Job) -> None:
        """Queue a job, after its adapter was loaded, its grammar has been compiled, and what a disk has of its prompt
        was read."""
        if not self._adapters.has(job):
            if self._adapters.keep(job):
                self.preparing[job.id] = job
                return
            self.engine.undelivered.append(Failed(job.id, "rejected", f"the adapter {job.adapter} is not loaded"))
            self.num_taken += 1
            return
        if self.engine.constraints.is_ready(job):
            self._restore_or_add(job)
            return
        self.preparing[job.id] = job
        self._compiler.submit(str(job.client), partial(self._prepare, job))

    def _prepare(self, job: Job) -> None:
        """Compile a job's grammar, and post the job. On the compiler's thread; errors are found again by `_add`."""
        try:
            if job.id in self.preparing:
                self.engine.constraints.prepare(job)
        except Exception as error:
            log.debug("job %d: %s", job.id, error)
        finally:
            self.mailbox.put(Prepared(job))

    def _restore_or_add(self, job: Job, deadline: float | None = None) -> None:
        """Queue a job, after what a disk has of its prompt was read. `deadline`: see `DiskCache.begin`."""
        disk = self.engine.disk
        if disk is None or not disk.begin(job, lambda restore: self.mailbox.put(Restored(restore)), deadline):
            self._add(job)
        else:
            self.preparing[job.id] = job

    def _finish_restore(self, restore: Restore) -> None:
        """Queue the job whose blocks were read; one of which only a part was, and others that waited, may need more."""
        assert self.engine.disk is not None
        self.engine.disk.finish(restore)
        for job, deadline in restore.waiting:
            if self.preparing.pop(job.id, None) is None:
                continue
            if job is restore.job and not restore.is_cut:
                self._add(job)
            else:
                self._restore_or_add(job, deadline)

    def _add_overdue(self) -> None:
        """Queue the jobs that have waited too long for a disk."""
        for job in self.engine.disk.overdue() if self.engine.disk is not None else ():
            if self.preparing.pop(job.id, None) is not None:
                self._add(job)

    def _free_adapters(self) -> None:
        """Free the adapters that are to be unloaded, and that no job has."""
        jobs = [*(each.job for each in self.engine.scheduler.sequences()), *self.preparing.values()]
        self._adapters.free({job.adapter for job in jobs})

    def _cancel_preparing(self, request: int) -> None:
        """Forget the jobs of a request that are not queued yet."""
        for job in [job for job in self.preparing.values() if job.request == request]:
            del self.preparing[job.id]
            self.num_taken += 1

    def _add(self, job: Job) -> None:
        """Queue a job; one that the engine cannot run fails alone."""
        try:
            self.engine.add(job)
        except GrammarError as error:
            self.engine.undelivered.append(Failed(job.id, "constraint", str(error)))
        except Exception as error:
            log.exception("job %d cannot be run", job.id)
            failed = Failed(job.id, "rejected", f"the engine cannot run the job: {error}")
            self.engine.undelivered.append(failed)
        self.num_taken += 1
