"""The flags of `onward key` that set what a key may do, and how their values are parsed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from onward import values
from onward.cli.command import moment_of
from onward.service.limits import Limits

ANY = "any"
"""The word for no limit."""
COUNTS = {
    "requests_per_minute": "Requests per minute.",
    "tokens_per_minute": "Tokens of prompts and completions per minute.",
    "parallel_requests": "Requests at a time.",
    "tokens_per_day": "Tokens per day (UTC).",
    "tokens_per_month": "Tokens per month (UTC).",
}
COSTS = {
    "cost_per_day": "Cost per day (UTC), in the currency of --price of the server.",
    "cost_per_month": "Cost per month (UTC).",
}
SIZES = {"stored_bytes": "Bytes of files that are stored."}
MAX_PRIORITY = 100
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_MAX_DURATION = 365_000 * 86_400
"""In seconds: the year is one of four digits, as those of dates that are shown."""


class _Limit(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A whole number or an amount of money, or `any`, which is -1."""

    def __init__(self, parser: Callable[[str], int], name: str) -> None:
        self.name = name
        self._parser = parser

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int) or value == ANY:
            return -1 if value == ANY else value
        try:
            return self._parser(value)
        except ValueError as problem:
            raise click.BadParameter(f"{value!r}: {problem}, or {ANY}.", ctx, param) from None


class _Moment(click.ParamType):  # type: ignore[type-arg]
    """A moment as Unix milliseconds: a date, a date and time (UTC), or a duration from now; `never` is -1."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int) or value == "never":
            return -1 if value == "never" else value
        if (seconds := _duration(value)) is not None:
            return int((time.time() + seconds) * 1000)
        try:
            return int(moment_of(value).timestamp() * 1000)
        except ValueError:
            raise click.BadParameter(
                f"{value!r} must be a date such as 2027-01-31, a duration such as 30d or 12h, or never.", ctx, param
            ) from None


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration in milliseconds, such as 30d, 12h, 90m or 0."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        seconds = 0 if value == "0" else _duration(value)
        if seconds is None:
            raise click.BadParameter(f"{value!r} must be a duration such as 7d, 12h, 90m or 0.", ctx, param)
        return seconds * 1000


def _duration(text: str) -> int | None:
    unit = _SECONDS.get(text[-1:])
    seconds = int(text[:-1]) * unit if unit and text[:-1].isdecimal() and len(text) < 8 else None
    return None if seconds is None or seconds > _MAX_DURATION else seconds


def limit_names() -> list[str]:
    return [*COUNTS, *COSTS, *SIZES]


def limits_of(given: dict[str, Any]) -> Limits:
    return Limits(**{name: given[name] for name in limit_names() if given[name] not in (None, -1)})


def rights_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return what flags set other than limits."""
    found: dict[str, Any] = {}
    if models := given["allow_model"]:
        found["models"] = None if ANY in models else frozenset(models)
    if given["log_requests"] is not None:
        found["logs_requests"] = given["log_requests"]
    if given["priority"] is not None:
        found["priority"] = given["priority"]
    if given["expires"] is not None:
        found["expires_ms"] = None if given["expires"] == -1 else given["expires"]
    return found


def limit_flags() -> list[click.Parameter]:
    kinds = (
        (COUNTS, _Limit(values.integer(1), "number"), "NUMBER"),
        (COSTS, _Limit(values.micro_units, "amount"), "AMOUNT"),
        (SIZES, _Limit(values.size, "size"), "SIZE"),
    )
    flags: list[click.Parameter] = [
        click.Option(["--" + name.replace("_", "-")], type=kind, metavar=f"{metavar}|{ANY}", help=help)
        for names, kind, metavar in kinds
        for name, help in names.items()
    ]
    models = f"The only model that the key may use; repeat the flag for several. {ANY}: all models."
    expires = "When the key expires: a date (UTC), a duration from now such as 30d, or never."
    priority = (
        "How many times the share of a key with 1 this one has, while both want more than the server computes at a "
        f"time: 1 to {MAX_PRIORITY}.  [default 1]"
    )
    return [
        *flags,
        click.Option(["--priority"], type=click.IntRange(1, MAX_PRIORITY), metavar="NUMBER", help=priority),
        click.Option(["--allow-model"], multiple=True, metavar=f"NAME|{ANY}", help=models),
        click.Option(["--expires"], type=_Moment(), metavar="TIME|never", help=expires),
        click.Option(
            ["--log-requests/--no-log-requests"],
            default=None,
            help="Whether the log of requests, if the server has one, includes those of this key.  [default yes]",
        ),
    ]
