"""`onward config show`: each setting, its value and its origin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onward import values
from onward.cli.command import CONTEXT, CommandGroup, session_command
from onward.cli.output.formats import emit, table
from onward.cli.session import Session
from onward.settings import Option, options, resolve


def show(session: Session, config: Path | None, changed: bool) -> None:
    resolved = resolve(config=config)
    rows = [
        {
            "name": option.name,
            "value": _plain(option, getattr(resolved.settings, option.name)),
            "origin": resolved.origins[option.name],
            "flag": option.flag,
            "environment": option.environment,
        }
        for option in options()
        if not changed or resolved.origins[option.name] != "default"
    ]
    by_name = {option.name: option for option in options()}
    shown = [[row["name"], _words(by_name[row["name"]], row["value"]), row["origin"]] for row in rows]
    emit(session.output, {"settings": rows}, lambda: _table(shown))


def _table(rows: list[list[str]]) -> str:
    return table(["SETTING", "VALUE", "SOURCE"], rows) if rows else "All settings are at their defaults."


def _plain(option: Option, value: Any) -> Any:
    """Return a value for JSON. A secret is replaced by the number of its entries."""
    if option.is_secret:
        return f"<{len(value)} hidden>" if value else []
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return ["=".join(item) if isinstance(item, tuple) else str(item) for item in value]
    return value


def _words(option: Option, value: Any) -> str:
    if value is None or value == []:
        return "auto" if "auto" in option.metavar else "–"
    if option.parser in (values.size, values.size_or_auto):
        return values.format_size(value)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


command = CommandGroup(
    "config",
    commands={
        "show": session_command(
            "show",
            show,
            "Show each setting, its value and where it comes from: a variable, a file, or the default.",
            [
                click.Option(
                    ["--config"],
                    type=click.Path(path_type=Path),
                    metavar="PATH",
                    help="Settings file to read.",
                ),
                click.Option(["--changed"], is_flag=True, help="Show only settings that differ from their defaults."),
            ],
            can_connect=False,
            example="settings.0.value",
        )
    },
    help="Show the settings.",
    context_settings=CONTEXT,
)
