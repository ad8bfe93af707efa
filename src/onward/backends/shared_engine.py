"""An engine that several models use, which differ in their adapters."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from onward.backends.answer import EmbeddedAnswer
from onward.backends.backlog import Backlog
from onward.backends.delivery import Delivery
from onward.engine.client import AdaptableClient, EngineClient
from onward.engine.events import Event
from onward.errors import SetupError


class SharedEngine:
    """An engine client, which it owns and starts, and the requests that it answers: of one model, or of several that
    differ in their adapters. Used on event loops; events arrive on a thread of the engine client.
    """

    def __init__(self, client: EngineClient, backlog: Backlog | None = None) -> None:
        self.client = client
        self.backlog = backlog or Backlog()
        self.answers: dict[int, EmbeddedAnswer] = {}
        """The running answer of each job, by job id."""
        self._uses: Counter[str] = Counter()
        """How many models use it, by the id of their adapter."""
        self._num_loading = 0
        """How many of these wait for their adapters: the engine does not stay for them alone."""
        self._lock = threading.Lock()
        client.start(self._deliver)

    def use(self, adapter: str = "", path: Path | None = None) -> None:
        """Have a model use the engine until `leave`, with an adapter, which is loaded from `path`. Blocks while it is.
        Any thread. Raises SetupError, EngineStopped."""
        if path is None:
            with self._lock:
                self._uses[adapter] += 1
            return
        if not isinstance(self.client, AdaptableClient):
            raise SetupError("What computes this model computes no adapters.")
        with self._lock:  # in the order of `leave`
            loading = self.client.load_adapter(adapter, path)
            self._uses[adapter] += 1
            self._num_loading += 1
        is_loaded = False
        try:
            loading.result()
            is_loaded = True
        finally:
            with self._lock:
                self._num_loading -= 1
            if not is_loaded:
                self.leave(adapter)

    def leave(self, adapter: str = "") -> None:
        """Note that a model no longer uses the engine. What no other one uses is freed: its adapter, or the engine. Any
        thread; blocks."""
        with self._lock:
            self._uses[adapter] -= 1
            is_last = self._uses.total() <= self._num_loading
            if adapter and not self._uses[adapter] and not is_last and isinstance(self.client, AdaptableClient):
                self.client.unload_adapter(adapter)
        if is_last:
            self.client.stop()

    def _deliver(self, events: Sequence[Event]) -> None:
        """Post the events of one step to the event loops of their answers. Called on a thread of the engine client."""
        steps: dict[Delivery, dict[EmbeddedAnswer, list[Event]]] = {}
        for event in events:
            answer = self.answers.get(event.job)
            if answer is None:
                continue
            if (step := steps.get(answer.delivery)) is None:
                step = steps[answer.delivery] = {}
            if (known := step.get(answer)) is None:
                step[answer] = [event]
            else:
                known.append(event)
        for delivery, posted in steps.items():
            delivery.post(posted.items())
