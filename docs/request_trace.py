"""One request through the rooms, with the values that pass: the trace in docs/maintainers.md."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from onward.backends import embedded
from onward.completions.choices import ChoiceStream
from onward.compose import compose
from onward.engine.scheduler import Scheduler
from onward.engine.step import Engine
from onward.runtimes.toy.model import ToyModel
from onward.server.app import App
from onward.settings import resolve

BODY = {"model": "toy", "prompt": "Once", "max_tokens": 2, "temperature": 0, "seed": 7, "stream": True}
SHOWN = {
    "CompletionRequest": ("model", "prompt", "max_tokens", "temperature", "seed", "stream"),
    "Job": ("id", "prompt", "num_choices", "max_tokens", "end_tokens"),
    "ScheduledSequence": ("num_tokens", "num_outputs", "is_prefill", "draft"),
    "Row": ("tokens", "start", "blocks", "outputs"),
    "Prefilled": ("job", "num_cached_tokens"),
    "Decoded": ("job", "choice", "tokens", "finish_reason"),
    "Sampled": ("token",),
    "Delta": ("index", "text", "tokens", "finish"),
    "TokenRecord": ("token", "token_bytes", "offset"),
    "Finish": ("reason", "stop"),
}
"""What is shown of each class; the rest is as it is without being asked for."""
COLUMN = 21


def trace() -> str:
    """Return the values that pass between the rooms, one per line, in the order in which they pass."""
    lines = [f"POST /v1/completions  {json.dumps(BODY)}"]

    def watch(owner: Any, name: str, where: str, found: Callable[[tuple[Any, ...], Any], Iterable[Any]]) -> None:
        original = getattr(owner, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            lines.extend(f"{where:{COLUMN}}{shown(each)}" for each in found(arguments, result))
            return result

        stack.enter_context(patch.object(owner, name, watched))

    with ExitStack() as stack:
        watch(embedded.EmbeddedBackend, "complete", "backends/base", lambda arguments, _: arguments[1:2])
        watch(embedded, "plan", "completions/plan", lambda _, planned: planned.jobs)
        watch(Scheduler, "schedule", "engine/scheduler", lambda _, output: output.scheduled)
        watch(ToyModel, "evaluate", "runtimes", lambda arguments, _: arguments[1])
        watch(Engine, "step", "engine/step", lambda _, events: events)
        sent, deltas = asyncio.run(_answered(stack))
    lines += [f"{'completions/choices':{COLUMN}}{shown(each)}" for each in deltas]
    lines += [f"{'server/sink':{COLUMN}}{each}" for each in sent]
    return "\n".join(lines)


def shown(value: Any) -> str:
    """Return a value as Python would write it, with the fields that matter here."""
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return f"[{', '.join(map(shown, value))}]"
    names = SHOWN.get(type(value).__name__)
    if names is None:
        return repr(set(value)) if isinstance(value, frozenset) else repr(value)
    return f"{type(value).__name__}({', '.join(f'{name}={shown(getattr(value, name))}' for name in names)})"


async def _answered(stack: ExitStack) -> tuple[list[str], list[Any]]:
    """Send BODY to a server; return the events that it sends, without what is new each time, and the deltas."""
    deltas: list[Any] = []
    accept = ChoiceStream.accept

    def watched(stream: ChoiceStream, events: Any) -> Any:
        found = accept(stream, events)
        deltas.extend(found)
        return found

    stack.enter_context(patch.object(ChoiceStream, "accept", watched))
    settings = resolve({"model": ["toy"], "engine_process": "off"}, environ={}).settings
    backend = compose(settings)
    body, sent = [json.dumps(BODY).encode()], list[str]()

    async def receive() -> dict[str, Any]:
        if body:
            return {"type": "http.request", "body": body.pop(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: MutableMapping[str, Any]) -> None:
        for event in message.get("body", b"").decode().split("\n\n"):
            if event.startswith("data: {"):
                sent.append("data: " + json.dumps({"choices": json.loads(event[6:])["choices"]}))
            elif event:
                sent.append(event)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "scheme": "http",
        "headers": [(b"content-type", b"application/json"), (b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1),
    }  # fmt: skip
    try:
        await App(backend, settings)(scope, receive, send)
    finally:
        await backend.aclose()
    return sent, deltas
