"""Computes saved answers again, several at a time, and says of each whether it has the same bytes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from onward.api.dialects import DIALECTS
from onward.api.openai.decode import check_request
from onward.api.openai.routes import COMPLETIONS, COMPLETIONS_OF_MODELS
from onward.api.routes import Route
from onward.cli.batch.patience import BUSY_STATUSES, Patience, RequestLost
from onward.cli.interrupt import run
from onward.cli.output.progress import ProgressLine, time_left, with_bar
from onward.cli.output.terminal import can_rewrite
from onward.cli.session import Session
from onward.cli.source.base import Document, RemoteError, Source
from onward.cli.source.open import open_source, unknown_models
from onward.cli.verify.saved import Saved, first_difference
from onward.cli.verify.verdicts import (
    DIFFERENT,
    SAME,
    UNKNOWN,
    Kind,
    Verdict,
    VerdictFile,
    Verification,
    digest_of,
)
from onward.completions.request import CompletionRequest
from onward.compose.upstreams import promises_bytes
from onward.errors import ApiError, EngineStopped

_OPENAI = {route.path for route in (*COMPLETIONS, *COMPLETIONS_OF_MODELS)}
_OTHERS = {route.path: route for routes in DIALECTS.values() for route in routes if route.method == "POST"}


@runtime_checkable
class AnyApi(Protocol):
    """A source that completes requests of all APIs."""

    async def complete_as(self, route: Route, fields: dict[str, Any], model: str, *, seed: int | None) -> Document: ...


class NotComputed(Exception):
    """Why an answer cannot be computed again."""


@dataclass(frozen=True, slots=True)
class VerifyRun:
    """Which answers to compute again: `read` yields them, and is called twice. `model` computes all of them; None: each
    its own. `output` has the verdicts of earlier runs, and gets the new ones."""

    session: Session
    read: Callable[[], Iterable[Saved]]
    concurrency: int
    model: str | None
    output: VerdictFile | None


def verify(asked: VerifyRun, found: Verification) -> None:
    """Add a verdict on every answer to `found`.

    Raises SetupError, and what ends a run: no connection, an engine that ends, KeyboardInterrupt.
    """
    models = _take_known(asked, found)
    missing = {} if asked.model else unknown_models(asked.session.connection, sorted(models))
    available = sorted(models - missing.keys())
    source = open_source(asked.session.connection, available, quiet=True) if available else None

    def all_saved() -> Iterator[tuple[int, Saved]]:
        for place, saved in enumerate(asked.read()):
            if place not in found.verdicts:
                reason = missing.get(asked.model or saved.model, "")
                yield place, replace(saved, problem=saved.problem or reason)

    started = time.monotonic()
    line = None
    if can_rewrite(sys.stderr):
        line = ProgressLine(lambda width: _progress(found, time.monotonic() - started, width))
    try:
        run(_all(_Verifier(source, asked.model), all_saved(), asked, found))
    finally:
        if line is not None:
            line.remove()


def _take_known(asked: VerifyRun, found: Verification) -> set[str]:
    """Count the answers, take the verdicts of earlier runs, and return the models that compute the others."""
    models: set[str] = set()
    for place, saved in enumerate(asked.read()):
        found.total += 1
        known = asked.output and asked.output.verdicts.get(digest_of(saved, asked.model))
        if known and known.verdict != UNKNOWN:  # another model may be here now
            found.verdicts[place] = known
        elif not why_unknown(saved, asked.model):
            models.add(asked.model or saved.model)
    found.num_before = len(found.verdicts)
    return models


async def _all(verifier: _Verifier, saved: Iterator[tuple[int, Saved]], asked: VerifyRun, found: Verification) -> None:
    async def work() -> None:
        for place, each in saved:
            found.verdicts[place] = verdict = await verifier.verdict(each)
            if asked.output is not None and not each.problem:
                asked.output.add(verdict, digest_of(each, asked.model))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(asked.concurrency):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        await verifier.aclose()


def _progress(found: Verification, seconds: float, width: int) -> str:
    done, counts, before = len(found.verdicts), found.counts, found.num_before
    parts = [f"{done:,}/{found.total:,}"]
    parts += [f"{counts[name]:,} {name}" for name in (DIFFERENT, UNKNOWN) if counts[name]]
    parts.append(time_left(done - before, found.total - before, seconds))
    return with_bar("", done, found.total, " ".join(filter(None, parts)), width)


def why_unknown(saved: Saved, model: str | None) -> str:
    """Return why nothing can be known of an answer before it is computed, by `model` or its own; "" if it may be."""
    if saved.problem:
        return saved.problem
    if not (model or saved.model):
        return "it does not say which model computed it: name one with --model"
    if not saved.fingerprint:
        return "the answer has no system_fingerprint: what computed it is not known"
    if not promises_bytes(saved.fingerprint):
        return f"another server computed it ({saved.fingerprint}), which does not promise the same bytes"
    return ""


class _Verifier:
    """Says what can be said of answers. Used on one event loop. `source` None: there is nothing to compute."""

    def __init__(self, source: Source | None, model: str | None) -> None:
        self._source = source
        self._model = model
        self._fingerprints: dict[str, str] = {}
        """The fingerprint that each model has here, once it is known."""
        self._patience = None if source is None else Patience(source)

    async def verdict(self, saved: Saved) -> Verdict:
        first = await self._verdict(saved)
        if first.verdict == DIFFERENT and saved.otherwise is not None:
            second = await self._verdict(saved.otherwise)
            return second if second.verdict == SAME else first
        return first

    async def _verdict(self, saved: Saved) -> Verdict:
        name = self._model or saved.model
        if reason := why_unknown(saved, self._model) or self._why_other(saved, self._fingerprints.get(name)):
            return _verdict(saved, UNKNOWN, reason=reason, computed=self._fingerprints.get(name))
        source, patience = self._source, self._patience
        assert source is not None and patience is not None
        try:
            document = await patience.complete(lambda: recompute(source, saved, name))
        except (NotComputed, RequestLost) as problem:
            return _verdict(saved, UNKNOWN, reason=str(problem))
        patience.finished()
        computed = document.value.get("system_fingerprint") or ""
        self._fingerprints[name] = computed
        if reason := self._why_other(saved, computed):
            return _verdict(saved, UNKNOWN, reason=reason, computed=computed)
        difference = first_difference(saved, document.value)
        return _verdict(saved, SAME if difference is None else DIFFERENT, difference=difference, computed=computed)

    def _why_other(self, saved: Saved, computed: str | None) -> str:
        if computed is None or computed == saved.fingerprint:
            return ""
        return (
            f"{saved.fingerprint} computed it, here it is {computed or 'not said'}: other weights, precision or version"
        )

    async def aclose(self) -> None:
        if self._source is not None:
            await self._source.aclose()


def _verdict(saved: Saved, verdict: Kind, **more: Any) -> Verdict:
    return Verdict(id=saved.id, model=saved.model, verdict=verdict, fingerprint=saved.fingerprint, **more)


async def recompute(source: Source, saved: Saved, model: str) -> Document:
    """Return what a saved request has as its answer now. Raises NotComputed, and what ends a run."""
    try:
        if saved.route in _OPENAI:
            return await _completed(source, saved, model)
        return await _completed_as(source, saved, model, _OTHERS.get(saved.route))
    except EngineStopped:
        raise
    except (ApiError, RemoteError) as problem:
        if problem.status in (401, 403, 408, *BUSY_STATUSES):  # they say nothing about the request
            raise
        raise NotComputed(f"it {'fails' if problem.status >= 500 else 'is refused'} here: {problem.message}") from None


async def _completed(source: Source, saved: Saved, model: str) -> Document:
    left_out = ("stream", "stream_options")
    fields = {name: value for name, value in saved.fields.items() if name not in left_out} | {"model": model}
    request = check_request(fields, profile="lenient")
    seed = saved.seed if request.seed is None else None
    if request.seed is None and seed is None and not is_determined(request):
        raise NotComputed("the request has no seed, and the answer does not say which was drawn")
    document = await source.complete(fields, seed=seed)
    if seed is not None and document.seed != seed:
        raise NotComputed(f"{source.name} does not let its clients say which seed is drawn")
    return document


def is_determined(request: CompletionRequest) -> bool:
    """Return whether every seed has the same answer."""
    is_greedy = request.temperature == 0 and (request.samplers is None or "temperature" in request.samplers)
    return is_greedy or request.max_tokens == 0


async def _completed_as(source: Source, saved: Saved, model: str, route: Route | None) -> Document:
    """Complete a request of another API, which a model in this process does."""
    if route is None:
        raise NotComputed(f"{saved.route} is no completion")
    if not isinstance(source, AnyApi):
        raise NotComputed(f"it was sent to {saved.route}, which only a model in this process can compute again")
    return await source.complete_as(route, saved.fields, model, seed=saved.seed)
