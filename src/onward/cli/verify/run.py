"""Computes saved answers again, several at a time, and decides for each whether it has the same bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

from onward.api.dialects import DIALECTS
from onward.api.openai.decode import check_request
from onward.api.openai.routes import COMPLETIONS, COMPLETIONS_OF_MODELS
from onward.api.routes import Route
from onward.cli.batch.patience import BUSY_STATUSES, Patience, RequestLost
from onward.cli.interrupt import run
from onward.cli.output.progress import shown_line, time_left, with_bar
from onward.cli.session import Session
from onward.cli.source.base import Document, RemoteError, Source
from onward.cli.source.open import open_source, unknown_models
from onward.cli.verify.saved import Saved, first_difference
from onward.cli.verify.verdicts import (
    DIFFERENT,
    SAME,
    UNKNOWN,
    Verdict,
    VerdictFile,
    VerdictKind,
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


TOO_LATE = "it was written after this run began: verify it again"


class NotComputed(Exception):
    """Why an answer cannot be computed again. `is_reply`: the server or model that was asked said so."""

    def __init__(self, reason: str, *, is_reply: bool = False) -> None:
        super().__init__(reason)
        self.is_reply = is_reply


@dataclass(frozen=True, slots=True)
class VerifyRun:
    """Which answers to compute again: `read` yields them. It is called twice, to find out which models they need and to
    compute them; its files may be written meanwhile. `model` computes all of them; None: each its own. `output`
    has the verdicts of earlier runs, and gets the new ones."""

    session: Session
    read: Callable[[], Iterable[Saved]]
    concurrency: int
    model: str | None
    output: VerdictFile | None


def verify(asked: VerifyRun, found: Verification) -> None:
    """Add a verdict on every answer to `found`.

    Raises SetupError, and what ends a run: no connection, an engine that ends, KeyboardInterrupt.
    """
    first = _look(asked)
    found.total = first.total
    missing = {} if asked.model else unknown_models(asked.session.connection, sorted(first.models))
    available = sorted(first.models - missing.keys())
    source = open_source(asked.session.connection, available, quiet=True) if available else None
    reasons = missing | dict.fromkeys(available, "")
    started = time.monotonic()
    with shown_line(lambda width: _progress(found, time.monotonic() - started, width)):
        run(_all(_Verifier(source, asked.model), _pending(asked, first.newest_ms, reasons, found), asked, found))


class _Look(NamedTuple):
    """The result of a first reading: how many answers there are, the models of those without a verdict, and when the
    newest was logged."""

    total: int
    models: set[str]
    newest_ms: int


def _look(asked: VerifyRun) -> _Look:
    total = newest_ms = 0
    models: set[str] = set()
    for saved in asked.read():
        total += 1
        newest_ms = max(newest_ms, saved.at_ms)
        if not why_unknown(saved, asked.model) and _known(asked, saved)[0] is None:
            models.add(asked.model or saved.model)
    return _Look(total, models, newest_ms)


def _known(asked: VerifyRun, saved: Saved) -> tuple[Verdict | None, str]:
    """Return the verdict of an earlier run, and the answer's digest if verdicts are kept."""
    if asked.output is None:
        return None, ""
    digest = digest_of(saved, asked.model)
    return asked.output.known(saved, digest), digest


class _Pending(NamedTuple):
    """An answer to compute again, and its place among all."""

    place: int
    saved: Saved
    digest: str


def _pending(asked: VerifyRun, newest_ms: int, reasons: Mapping[str, str], found: Verification) -> Iterator[_Pending]:
    """Read all answers; add those whose verdict is known to `found`, and yield the others.

    What was logged after `newest_ms` is left out: a server may log what is asked of it here, which would never end.
    `reasons` has, for each model of the first reading, why it is not available; "" if it is.
    """
    total = 0
    for place, saved in enumerate(each for each in asked.read() if each.at_ms <= newest_ms):
        total = place + 1
        found.total = max(found.total, total)
        known, digest = _known(asked, saved)
        if known is not None:
            found.num_known += 1
            found.add(place, known)
            continue
        problem = saved.problem
        if not why_unknown(saved, asked.model):
            problem = reasons.get(asked.model or saved.model, TOO_LATE)
        yield _Pending(place, replace(saved, problem=problem), digest)
    found.total = total


async def _all(verifier: _Verifier, pending: Iterator[_Pending], asked: VerifyRun, found: Verification) -> None:
    async def work() -> None:
        for place, saved, digest in pending:
            verdict = await verifier.verdict(saved)
            found.add(place, verdict)
            if asked.output is not None and not saved.problem:
                asked.output.add(verdict, digest)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(asked.concurrency):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        await verifier.aclose()


def _progress(found: Verification, seconds: float, width: int) -> str:
    done, counts, known = found.num_done, found.counts, found.num_known
    parts = [f"{done:,}/{found.total:,}"]
    parts += [f"{counts[name]:,} {name}" for name in (DIFFERENT, UNKNOWN) if counts[name]]
    parts.append(time_left(done - known, found.total - known, seconds))
    return with_bar("", done, found.total, " ".join(filter(None, parts)), width)


def why_unknown(saved: Saved, model: str | None) -> str:
    """Return why an answer cannot be checked, by `model` or its own, before it is computed; "" if it may be
    possible."""
    if saved.problem:
        return saved.problem
    if not (model or saved.model):
        return "it does not say which model computed it: name one with --model"
    if not saved.fingerprint:
        return "the answer has no system_fingerprint: it is not known what computed it"
    if not promises_bytes(saved.fingerprint):
        return f"another server computed it ({saved.fingerprint}), which does not promise the same bytes"
    return ""


class _Verifier:
    """Decides the verdicts on answers. Used on one event loop. `source` None: there is nothing to compute."""

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
            if isinstance(problem, RequestLost) or problem.is_reply:
                patience.finished()
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


def _verdict(saved: Saved, verdict: VerdictKind, **more: Any) -> Verdict:
    return Verdict(id=saved.id, model=saved.model, verdict=verdict, fingerprint=saved.fingerprint, **more)


async def recompute(source: Source, saved: Saved, model: str) -> Document:
    """Return the answer that a saved request gets now. Raises NotComputed, and what ends a run."""
    try:
        if saved.route in _OPENAI:
            return await _completed(source, saved, model)
        return await _completed_as(source, saved, model, _OTHERS.get(saved.route))
    except EngineStopped:
        raise
    except (ApiError, RemoteError) as problem:
        if problem.status in (401, 403, 408, *BUSY_STATUSES):  # they say nothing about the request
            raise
        what = "fails" if problem.status >= 500 else "is refused"
        raise NotComputed(f"it {what} here: {problem.message}", is_reply=isinstance(problem, RemoteError)) from None


async def _completed(source: Source, saved: Saved, model: str) -> Document:
    left_out = ("stream", "stream_options")
    fields = {name: value for name, value in saved.fields.items() if name not in left_out} | {"model": model}
    request = check_request(fields, profile="lenient")
    seed = saved.seed if request.seed is None else None
    if request.seed is None and seed is None and not is_determined(request):
        raise NotComputed("the request has no seed, and the answer does not say which was drawn")
    document = await source.complete(fields, seed=seed)
    if seed is not None and document.seed != seed:
        raise NotComputed(f"{source.name} does not let its clients say which seed is drawn", is_reply=True)
    return document


def is_determined(request: CompletionRequest) -> bool:
    """Return whether every seed has the same answer."""
    is_greedy = request.temperature == 0 and (request.samplers is None or "temperature" in request.samplers)
    return is_greedy or request.max_tokens == 0


async def _completed_as(source: Source, saved: Saved, model: str, route: Route | None) -> Document:
    """Complete a request of another API, which only a model in this process can do."""
    if route is None:
        raise NotComputed(f"{saved.route} is not a route for completions")
    if not isinstance(source, AnyApi):
        raise NotComputed(f"it was sent to {saved.route}, which only a model in this process can compute again")
    return await source.complete_as(route, saved.fields, model, seed=saved.seed)
