"""What a key may use, in integers: reservation before the first token, settlement by billed tokens. Pure.

Times are Unix milliseconds. Levels of the per-minute buckets are in 1/60,000 of a request or token, of which a limit of
L per minute refills L per millisecond; so nothing is rounded (behaviour §16.3).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Literal

UNIT = 60_000
"""Levels per request or token."""
DAY_MS = 86_400_000
CLOCK_SLACK_MS = 60_000
"""A bucket that was counted further in the future than this was counted by a clock that has been set back since."""

Cause = Literal[
    "requests",
    "parallel",
    "tokens",
    "too_large",
    "tokens_per_day",
    "tokens_per_month",
    "cost_per_day",
    "cost_per_month",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a key may use; None: any amount. Costs are in micro-units of the currency; days and months are UTC.
    `stored_bytes` are those of its files."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    parallel_requests: int | None = None
    tokens_per_day: int | None = None
    tokens_per_month: int | None = None
    cost_per_day: int | None = None
    cost_per_month: int | None = None
    stored_bytes: int | None = None

    def __bool__(self) -> bool:
        """Whether anything bounds requests: bytes that are stored do not."""
        return any(getattr(self, each.name) is not None for each in fields(self) if each.name != "stored_bytes")


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUsage:
    """What a key has used of its limits, with what is reserved. A level of None is a full bucket. `day` counts days
    since 1970, `month` months since year 0; what was used belongs to them."""

    at_ms: int = 0
    request_level: int | None = None
    token_level: int | None = None
    num_running: int = 0
    day: int = 0
    day_tokens: int = 0
    day_cost: int = 0
    month: int = 0
    month_tokens: int = 0
    month_cost: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one request may use at most: `tokens` of prompt and completion, and their `cost` in micro-units. `day` and
    `month` are those that it counts for. A line of a batch (`is_batch`) counts for nothing else: neither per minute nor
    as a parallel request (behaviour §18.7)."""

    tokens: int
    cost: int
    day: int
    month: int
    is_batch: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not be computed. `wait_ms` is after what time it may be accepted; None: waiting is useless."""

    cause: Cause
    limit: int
    used: int
    requested: int
    wait_ms: int | None


def reserve(
    limits: Limits, usage: KeyUsage, tokens: int, cost: int, now_ms: int, *, is_batch: bool = False
) -> tuple[KeyUsage, Reservation | Refusal]:
    """Return the usage with a request that may use `tokens` and `cost`, and its reservation; or why it is refused.

    A refused request counts against the requests per minute all the same (behaviour §16.3).
    """
    usage = at(limits, usage, now_ms)
    refusal = _spent(limits, usage, tokens, cost, now_ms)
    if is_batch:
        return (usage, refusal) if refusal else (_used(usage, tokens, cost), _reservation(usage, tokens, cost, True))
    refusal = refusal or _busy(limits, usage, tokens)
    level = usage.request_level
    if level is not None:
        usage = replace(usage, request_level=max(0, level - UNIT))
    if refusal is not None:
        if refusal.cause == "requests":
            refusal = replace(refusal, wait_ms=_wait(usage.request_level or 0, UNIT, limits.requests_per_minute or 1))
        return usage, refusal
    if usage.token_level is not None:
        usage = replace(usage, token_level=usage.token_level - tokens * UNIT)
    usage = replace(_used(usage, tokens, cost), num_running=usage.num_running + 1)
    return usage, _reservation(usage, tokens, cost, False)


def _used(usage: KeyUsage, tokens: int, cost: int) -> KeyUsage:
    """Return the usage with more tokens and cost of the day and month."""
    return replace(
        usage,
        day_tokens=usage.day_tokens + tokens,
        day_cost=usage.day_cost + cost,
        month_tokens=usage.month_tokens + tokens,
        month_cost=usage.month_cost + cost,
    )


def _reservation(usage: KeyUsage, tokens: int, cost: int, is_batch: bool) -> Reservation:
    return Reservation(tokens, cost, usage.day, usage.month, is_batch)


def settle(limits: Limits, usage: KeyUsage, reservation: Reservation, tokens: int, cost: int, now_ms: int) -> KeyUsage:
    """Return the usage after a reserved request has ended, for which `tokens` and `cost` were billed."""
    usage = at(limits, usage, now_ms)
    more_tokens, more_cost = tokens - reservation.tokens, cost - reservation.cost
    if usage.token_level is not None and limits.tokens_per_minute is not None and not reservation.is_batch:
        level = min(limits.tokens_per_minute * UNIT, usage.token_level - more_tokens * UNIT)
        usage = replace(usage, token_level=level)
    if usage.day == reservation.day:
        usage = replace(usage, day_tokens=usage.day_tokens + more_tokens, day_cost=usage.day_cost + more_cost)
    if usage.month == reservation.month:
        usage = replace(usage, month_tokens=usage.month_tokens + more_tokens, month_cost=usage.month_cost + more_cost)
    return usage if reservation.is_batch else replace(usage, num_running=max(0, usage.num_running - 1))


def bill(limits: Limits, usage: KeyUsage, tokens: int, cost: int, now_ms: int, *, is_batch: bool = False) -> KeyUsage:
    """Return the usage after a request that was not reserved has ended."""
    usage = at(limits, usage, now_ms)
    if not is_batch:
        usage = replace(usage, num_running=usage.num_running + 1)
    return settle(limits, usage, _reservation(usage, 0, 0, is_batch), tokens, cost, now_ms)


def at(limits: Limits, usage: KeyUsage, now_ms: int) -> KeyUsage:
    """Return the usage at a later time: buckets are refilled, and a new day or month begins with nothing used.

    Clocks jump: one that was set back refills nothing until it has caught up, unless it was wrong by more than a minute
    (for days: by more than a day).
    """
    known = min(usage.at_ms, now_ms) if usage.at_ms > now_ms + CLOCK_SLACK_MS else usage.at_ms
    elapsed = max(0, now_ms - known)
    day, month = now_ms // DAY_MS, month_of(now_ms)
    usage = replace(
        usage,
        at_ms=max(known, now_ms),
        request_level=_refilled(usage.request_level, limits.requests_per_minute, elapsed),
        token_level=_refilled(usage.token_level, limits.tokens_per_minute, elapsed),
    )
    if day > usage.day or usage.day > day + 1:
        usage = replace(usage, day=day, day_tokens=0, day_cost=0)
    if month > usage.month or usage.month > month + 1:
        usage = replace(usage, month=month, month_tokens=0, month_cost=0)
    return usage


def month_of(now_ms: int) -> int:
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    return moment.year * 12 + moment.month - 1


def _refilled(level: int | None, limit: int | None, elapsed_ms: int) -> int | None:
    """Return the level of a bucket after some time; None where there is no limit."""
    if limit is None:
        return None
    capacity = limit * UNIT
    return capacity if level is None else min(capacity, level + limit * elapsed_ms)


def _spent(limits: Limits, usage: KeyUsage, tokens: int, cost: int, now_ms: int) -> Refusal | None:
    """Return which daily or monthly budget does not suffice, first those for which waiting does not help."""
    budgets: tuple[tuple[Cause, int | None, int, int, int | None], ...] = (
        ("cost_per_month", limits.cost_per_month, usage.month_cost, cost, None),
        ("cost_per_day", limits.cost_per_day, usage.day_cost, cost, None),
        ("tokens_per_month", limits.tokens_per_month, usage.month_tokens, tokens, None),
        ("tokens_per_day", limits.tokens_per_day, usage.day_tokens, tokens, DAY_MS - now_ms % DAY_MS),
    )
    for cause, limit, used, requested, wait in budgets:
        if limit is not None and used + requested > limit:
            return Refusal(cause, limit, used, requested, wait if requested <= limit else None)
    return None


def _busy(limits: Limits, usage: KeyUsage, tokens: int) -> Refusal | None:
    """Return which limit per minute, or of parallel requests, does not suffice: first requests, then tokens."""
    per_minute = limits.tokens_per_minute
    if per_minute is not None and tokens > per_minute:
        return Refusal("too_large", per_minute, 0, tokens, None)
    if (limit := limits.requests_per_minute) is not None:
        level = usage.request_level or 0
        if level < UNIT:
            return Refusal("requests", limit, limit - max(0, level) // UNIT, 1, _wait(level, UNIT, limit))
    if limits.parallel_requests is not None and usage.num_running >= limits.parallel_requests:
        return Refusal("parallel", limits.parallel_requests, usage.num_running, 1, 1000)
    if per_minute is not None:
        level = usage.token_level or 0
        if level < tokens * UNIT:
            used = per_minute - max(0, level) // UNIT
            return Refusal("tokens", per_minute, used, tokens, _wait(level, tokens * UNIT, per_minute))
    return None


def _wait(level: int, needed: int, limit: int) -> int:
    """Return the milliseconds after which a bucket has refilled to `needed`."""
    return max(1, -(-(needed - level) // limit)) if needed > level else 1


def headers(limits: Limits, usage: KeyUsage) -> dict[str, str]:
    """Return the `x-ratelimit-*` headers of a response: none without a limit per minute (behaviour §16.1)."""
    found: dict[str, str] = {}
    buckets = (
        ("requests", limits.requests_per_minute, usage.request_level),
        ("tokens", limits.tokens_per_minute, usage.token_level),
    )
    for name, limit, level in buckets:
        if limit is not None:
            level = limit * UNIT if level is None else level
            found[f"x-ratelimit-limit-{name}"] = str(limit)
            found[f"x-ratelimit-remaining-{name}"] = str(max(0, level) // UNIT)
            found[f"x-ratelimit-reset-{name}"] = duration(-(-(limit * UNIT - level) // limit))
    return found


def duration(ms: int) -> str:
    """Return milliseconds as Go writes a duration: `120ms`, `1s`, `8.64s`, `6m0s`, `1h2m3.5s`."""
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    seconds, rest = divmod(ms, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{seconds}.{rest:03d}".rstrip("0").rstrip(".") + "s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + text
