"""`onward usage`: who used what, from the ledger of a database."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from onward.cli.command import CONTEXT, moment_of
from onward.cli.database import database_flags, open_named
from onward.cli.output.formats import amount, table, text_cell

if TYPE_CHECKING:
    from onward.service.records import Sums

DAY = 86_400
BY = ("key", "model", "day")
_COLUMNS = {"key": "key_name", "model": "model"}
NUMBERS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost")


class _Date(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """A date or a date and time (UTC), as Unix seconds."""

    name = "date"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        try:
            return int(moment_of(value).timestamp())
        except ValueError:
            raise click.BadParameter(f"{value!r} must be a date such as 2027-01-31.", ctx, param) from None


def _groups(_: click.Context, __: click.Parameter, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if name not in BY:
            raise click.UsageError(f"--by {name}: must be one or more of {', '.join(BY)}, separated by commas.")
    return names


def run(since: int | None, until: int | None, by: tuple[str, ...], format: str, **given: Any) -> None:
    """Write the sums of the requests that ended from `since` to before `until`, by default in the last 30 days."""
    from onward.service.ledger import sums
    from onward.service.records import Question

    with open_named(given) as store:
        end = store.clock() // 1000 + 1 if until is None else until
        start = end - int(timedelta(days=30).total_seconds()) if since is None else since
        width = DAY if "day" in by else max(end, 1)
        groups = tuple(_COLUMNS[name] for name in by if name in _COLUMNS)
        with store.read() as connection:
            found = sums(connection, Question(max(0, start), end, width, groups))
    rows = [_row(each, by) for each in found]
    columns = [*by, *NUMBERS]
    match format:
        case "json":
            click.echo(json.dumps(rows, ensure_ascii=False, indent=2))
        case "csv":
            click.echo(_csv(columns, rows), nl=False)
        case _:
            cells = [[_text(row[column]) for column in columns] for row in rows]
            click.echo(table([name.replace("_", " ") for name in columns], cells))


def _row(sums: Sums, by: tuple[str, ...]) -> dict[str, Any]:
    day = datetime.fromtimestamp(sums.start, UTC).strftime("%Y-%m-%d")
    group = {name: day if name == "day" else sums.group[_COLUMNS[name]] for name in by}
    numbers = (sums.requests, sums.prompt_tokens, sums.cached_tokens, sums.completion_tokens)
    cost = (sums.prompt_cost + sums.completion_cost) / 1_000_000
    return group | dict(zip(NUMBERS, (*numbers, cost), strict=True))


def _csv(columns: list[str], rows: list[dict[str, Any]]) -> str:
    """Return rows for spreadsheets: text that they would take for a formula gets an apostrophe, numbers never do."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (row[column] for column in columns)
        writer.writerow([text_cell(value) if isinstance(value, str) else _text(value) for value in values])
    return written.getvalue()


def _text(value: str | float) -> str:
    return amount(value) if isinstance(value, float) else str(value)


command = click.Command(
    "usage",
    callback=run,
    params=[
        click.Option(["--since"], type=_Date(), metavar="DATE", help="First moment (UTC).  [default 30 days ago]"),
        click.Option(["--until"], type=_Date(), metavar="DATE", help="First moment after it (UTC).  [default now]"),
        click.Option(
            ["--by"], default="key", callback=_groups, metavar="NAMES", help="Of key, model, day.  [default key]"
        ),
        click.Option(
            ["--format"],
            type=click.Choice(["table", "text", "csv", "json"]),
            default="table",
            help="text: the same as table.  [default table]",
        ),
        *database_flags(),
    ],
    help="Show who used what: requests, tokens and cost, as clients saw them in `usage`.",
    context_settings=CONTEXT,
)
