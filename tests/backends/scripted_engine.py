"""An EngineClient without an engine: emits scripted events on a thread of its own, as the client of a remote engine."""

from __future__ import annotations

import asyncio
import math
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

from onward.backends.embedded import EmbeddedBackend
from onward.completions.filters import ContentFilters
from onward.completions.plan import ServedModel
from onward.engine.client import Cancel, CancelChoice, Command, Deliver, EngineInfo, EngineState, Stop, Submit
from onward.engine.events import Decoded, EngineFinishReason, Event, Failed, FailureKind, Prefilled
from onward.engine.job import Job
from onward.engine_load import EngineLoad
from onward.errors import ApiError
from onward.model_files.toy import ToyTokenizer
from onward.sampling.outputs import Sampled
from tests.toy_backend import backend_of

Script = Callable[[Job], Iterable[list[Event]]]
"""Yields the events of each step of a job. Scripts ignore stop strings, like an engine that cannot find them."""


class ScriptedEngine:
    """Implements `engine.client.EngineClient`.

    `loop_calls` are the names of the members that were used on a thread with a running event loop. `refusal`: the error
    that `submit` raises, if any.
    """

    def __init__(self, script: Script, *, refusal: ApiError | None = None) -> None:
        self.submitted: list[Job] = []
        self.cancelled: list[int] = []
        self.cancelled_choices: list[tuple[int, int]] = []
        self.loop_calls: set[str] = set()
        self.num_starts = self.num_stops = 0
        self.published_load = EngineLoad(num_running=3, num_waiting=2, num_steps=77)
        self._script = script
        self._refusal = refusal
        self._state = EngineState()
        self._deliver: Deliver = lambda events: None
        self._mailbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._silenced: set[tuple[int, int]] = set()
        self._running: dict[int, tuple[Job, Iterator[list[Event]]]] = {}
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)

    def start(self, deliver: Deliver) -> None:
        self._note("start")
        self.num_starts += 1
        self._deliver = deliver
        self._thread.start()

    def submit(self, jobs: Sequence[Job]) -> None:
        self._note("submit")
        if self._refusal is not None:
            raise self._refusal
        self.submitted += jobs
        self._mailbox.put(Submit(list(jobs)))

    def cancel(self, request: int) -> None:
        self._note("cancel")
        self.cancelled.append(request)
        self._mailbox.put(Cancel(request))

    def cancel_choice(self, job: int, choice: int) -> None:
        self._note("cancel_choice")
        self.cancelled_choices.append((job, choice))
        self._mailbox.put(CancelChoice(job, choice))

    def stop(self) -> None:
        self._note("stop")
        self.num_stops += 1
        self._mailbox.put(Stop())
        self._thread.join(60)
        assert not self._thread.is_alive()

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(vocab_size=512, context_length=2048, max_rows=64, fingerprint="fp_scripted")

    @property
    def state(self) -> EngineState:
        self._note("state")
        return self._state

    @property
    def load(self) -> EngineLoad:
        self._note("load")
        return self.published_load

    def recover(self) -> None:
        """Let the engine report that it is being started again."""
        self._state = EngineState("recovering", "killed by SIGKILL")

    def crash(self, reason: str) -> None:
        """Let the engine crash before its next step."""
        self._state = EngineState("crashed", reason)

    def _note(self, name: str) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self.loop_calls.add(name)

    def _run(self) -> None:
        stopping = False
        while not stopping and self._state.status == "running":
            for command in self._commands(wait=not self._running):
                match command:
                    case Submit(jobs):
                        self._running |= {job.id: (job, iter(self._script(job))) for job in jobs}
                    case Cancel(request):
                        self._running = {i: each for i, each in self._running.items() if each[0].request != request}
                    case CancelChoice(job, choice):
                        self._cancel_choice(job, choice)
                    case Stop():
                        stopping = True
            if self._running and not stopping:
                self._step()
        kind: FailureKind = "crashed" if self._state.status == "crashed" else "stopped"
        failures: list[Event] = [Failed(job_id, kind, self._state.crash_reason or "") for job_id in self._running]
        self._deliver(failures)

    def _commands(self, *, wait: bool) -> list[Command]:
        commands = [self._mailbox.get()] if wait else []
        while not self._mailbox.empty():
            commands.append(self._mailbox.get())
        return commands

    def _cancel_choice(self, job_id: int, choice: int) -> None:
        """Send no more events of a choice; drop a job that has no other."""
        self._silenced.add((job_id, choice))
        job, _ = self._running.get(job_id, (None, None))
        if job is not None and all((job_id, index) in self._silenced for index in range(job.num_choices)):
            del self._running[job_id]

    def _step(self) -> None:
        events: list[Event] = []
        for job_id, (_, steps) in list(self._running.items()):
            step = next(steps, None)
            if step is None:
                del self._running[job_id]
            else:
                events += step
        self._deliver([each for each in events if (each.job, getattr(each, "choice", None)) not in self._silenced])


def backend_over(
    engine: ScriptedEngine, filters: ContentFilters | None = None, *, name: str = "toy"
) -> EmbeddedBackend:
    """A backend with one model, which has the toy's tokenizer."""
    tokenizer = ToyTokenizer()
    return backend_of(engine, ServedModel.create(name, tokenizer, tokenizer.size, 2048), filters=filters)


def sampled(token: int, logprob: float = math.nan, top: tuple[tuple[int, float], ...] = ()) -> Sampled:
    return Sampled(token, logprob, top)


def decoding(*texts: str, num_cached_tokens: int = 0) -> Script:
    """A script that decodes one byte per step, for choice i those of `texts[i]`, repeatedly up to max_tokens. The
    only finish reason that it ever reports is `length`."""

    def script(job: Job) -> Iterator[list[Event]]:
        yield [Prefilled(job.id, num_cached_tokens)]
        for index in range(job.max_tokens):
            finish: EngineFinishReason | None = "length" if index + 1 == job.max_tokens else None
            yield [
                Decoded(job.id, choice, [sampled(text[index % len(text)])], finish)
                for choice, text in enumerate(map(str.encode, texts))
            ]

    return script


def endless(job: Job) -> Iterator[list[Event]]:
    """A script that decodes the letter a until its job is cancelled."""
    yield [Prefilled(job.id, 0)]
    while True:
        yield [Decoded(job.id, 0, [sampled(ord("a"))])]


def replaying(*steps: Sequence[Sampled]) -> Script:
    """A script that decodes these tokens for the only choice, step by step, then nothing more."""

    def script(job: Job) -> Iterator[list[Event]]:
        yield [Prefilled(job.id, 0)]
        for step in steps:
            yield [Decoded(job.id, 0, list(step))]

    return script
