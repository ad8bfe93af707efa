"""Settings as flags, and a command whose flags are the settings, in groups in its help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from onward import values
from onward.cli.command import Argument
from onward.cli.completers import model_names
from onward.errors import SetupError
from onward.folders import home_folder
from onward.settings import Option, Resolved, options, resolve


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

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        parser = self._option.parser
        if parser is values.path:
            return click.Path().shell_complete(ctx, param, incomplete)
        words = [*getattr(parser, "choices", ()), *(["auto"] if parser is values.size_or_auto else [])]
        if self._option.name == "model":
            words = model_names(ctx, param, incomplete)
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class SettingsCommand(click.Command):
    """A command whose help shows the settings by group. Its callback receives them as `resolved`."""

    def __init__(self, name: str, **attributes: Any) -> None:
        parameters: list[click.Parameter] = [setting_flag(option) for option in options()]
        super().__init__(name, params=[_models_argument(), *parameters, _config_option()], **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.params = {"resolved": self._resolved(ctx.params)}
        return super().invoke(ctx)

    def _resolved(self, given: dict[str, Any]) -> Resolved:
        given = {**given, "model": (*given["models"], *given.get("model", ()))}
        flags: dict[str, str | list[str]] = {}
        for option in options():
            value = given[option.name]
            if option.is_repeatable and value:
                flags[option.name] = list(value)
            elif value is not None and not option.is_repeatable:
                flags[option.name] = str(value).lower() if option.is_boolean else value
        return resolve(flags, config=given["config"])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        groups = {option.name: option.group for option in options()} | {"models": "Model"}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Argument) and hasattr(self, "format_arguments"):  # click 8.5 and later
                continue
            if (record := parameter.get_help_record(ctx)) is not None:
                sections.setdefault(groups.get(parameter.name or "", "Other"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def setting(name: str) -> Option:
    return next(option for option in options() if option.name == name)


def setting_flag(option: Option, help: str | None = None) -> click.Option:
    """Return the flag of a setting. Its value is the validated text; a tuple of texts for a repeatable setting. `help`
    says what a command does with it that does not serve."""
    help = f"{help or option.help}  [{_default_text(option)}{option.environment}]"
    if option.is_boolean:
        off = "/--no-" + option.flag.removeprefix("--") if option.default else ""
        return click.Option([option.flag + off], is_flag=True, default=None, help=help)
    names = ["-m", option.flag] if option.name == "model" else [option.flag]  # -m as of every other command
    return click.Option(
        names, type=SettingType(option), metavar=option.metavar, multiple=option.is_repeatable, help=help
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


def _models_argument() -> Argument:
    description = "Models to serve, in addition to those of --model and before them."
    return Argument("models", description, nargs=-1, metavar="[NAME_OR_PATH]...", type=SettingType(setting("model")))


def _config_option() -> click.Option:
    return click.Option(
        ["--config"],
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Settings file to use instead of ./onward.toml or the one in the configuration folder.  [ONWARD_CONFIG]",
    )
