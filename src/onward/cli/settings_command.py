"""A command whose flags are the settings, shown in groups in its help."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from onward import values
from onward.errors import SetupError
from onward.settings import GROUPS, Group, Option, Resolved, home_folder, options, resolve


class SettingType(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Validates a flag with the setting's own parser and returns the text, which `resolve` parses."""

    def __init__(self, option: Option) -> None:
        self.name = option.metavar or "text"
        self._option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            self._option.parse(value, self._option.flag)
        except SetupError as problem:
            raise click.UsageError(str(problem), ctx) from None
        return value


class SettingsCommand(click.Command):
    """A command whose help shows the settings by group. Its callback receives them as `resolved`."""

    def __init__(self, name: str, *, groups: Iterable[Group] = GROUPS, **attributes: Any) -> None:
        self._settings = [option for option in options() if option.group in set(groups)]
        parameters: list[click.Parameter] = [_click_option(option) for option in self._settings]
        parameters.append(_config_option())
        super().__init__(name, params=parameters, **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.params = {"resolved": self._resolved(ctx.params)}
        return super().invoke(ctx)

    def _resolved(self, given: dict[str, Any]) -> Resolved:
        flags: dict[str, str | list[str]] = {}
        for option in self._settings:
            value = given[option.name]
            if option.is_repeatable and value:
                flags[option.name] = list(value)
            elif value is not None and not option.is_repeatable:
                flags[option.name] = str(value).lower() if option.is_boolean else value
        return resolve(flags, config=given["config"])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        by_name = {option.name: option for option in self._settings}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                option = by_name.get(parameter.name or "")
                sections.setdefault(option.group if option else "Other", []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _click_option(option: Option) -> click.Option:
    help = f"{option.help}  [{_default_text(option)}{option.environment}]"
    if option.is_boolean:
        off = "/--no-" + option.flag.removeprefix("--") if option.default else ""
        return click.Option([option.flag + off], is_flag=True, default=None, help=help)
    return click.Option(
        [option.flag], type=SettingType(option), metavar=option.metavar, multiple=option.is_repeatable, help=help
    )


def _default_text(option: Option) -> str:
    if option.default in (None, (), False):
        return ""
    shown = option.default[0] if option.is_repeatable else option.default
    if option.parser is values.size:
        words = values.format_size(shown)
    else:
        words = "on" if shown is True else f"{shown:g}" if isinstance(shown, float) else str(shown)
    return f"default {words.replace(str(home_folder()), '~')}; "


def _config_option() -> click.Option:
    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Settings file to use instead of ./onward.toml or the one in the configuration folder.  [ONWARD_CONFIG]",
    )
