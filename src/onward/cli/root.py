"""`onward`: a group whose commands are imported when they run, which keeps help fast."""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

from onward.cli.command import CommandGroup
from onward.cli.hints import corrected, known_flags, runnable
from onward.cli.interrupt import EXIT_CODE
from onward.cli.output.errors import report_output_errors
from onward.cli.output.terminal import visible
from onward.errors import SetupError

COMMANDS = {
    "serve": ("onward.cli.commands.serve", "Serve the Completions API over HTTP."),
    "completions": ("onward.cli.commands.completions", "Create completions: `completions create`."),
    "score": ("onward.cli.commands.score", "Score texts: log-probabilities, bits per byte, perplexity."),
    "pull": ("onward.cli.commands.pull", "Download a model by one word, such as `pull smollm2`."),
    "models": ("onward.cli.commands.models", "List, show and download models."),
    "tokenize": ("onward.cli.commands.tokenize", "Show the tokens of a text."),
    "batch": ("onward.cli.commands.batch", "Run a file of requests, here or on a server."),
    "cluster": ("onward.cli.commands.cluster", "Engines on several machines: `cluster up`."),
    "key": ("onward.cli.commands.key", "Make API keys, with limits: `key new`."),
    "usage": ("onward.cli.commands.usage", "Show who used what: tokens and cost by key, model, day."),
    "requests": ("onward.cli.commands.requests", "List, show and replay the requests that a server logged."),
    "verify": ("onward.cli.commands.verify", "Compute saved answers again: which have the same bytes."),
    "database": ("onward.cli.commands.database", "Back up, restore and check the database of a server."),
    "config": ("onward.cli.commands.config", "Show the settings and where each one comes from."),
    "doctor": ("onward.cli.commands.doctor", "Check this machine: what works, what is missing, what to do."),
    "completion": ("onward.cli.commands.help", "Print a shell completion script."),
    "help": ("onward.cli.commands.help", "Show help for a command."),
    "version": ("onward.cli.commands.help", "Show the version."),
    "api": ("onward.cli.commands.api", "OpenAI's old spelling: `api completions.create`."),
}
"""Name → (module that defines its `command`, line in the help)."""
HIDDEN = {"@completion": COMMANDS["completion"][0], "@manpages": "onward.cli.commands.manpages"}
"""Names that OpenAI's command line has for packagers → module."""


class LazyGroup(CommandGroup):
    """A group that imports its commands from COMMANDS. Reports a SetupError in one line, with exit code 1."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with report_output_errors():  # help and version are written here
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS[cmd_name][0] if cmd_name in COMMANDS else HIDDEN.get(cmd_name)
        if module is None:
            return None
        found = importlib.import_module(module).command
        return found if isinstance(found, click.Command) else found(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            _check_folder()
            with report_output_errors():
                return super().invoke(ctx)
        except click.UsageError as problem:
            raise corrected(problem) from None
        except SetupError as problem:
            click.echo(f"onward: {visible(runnable(known_flags(str(problem))))}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            ctx.exit(EXIT_CODE)


def _check_folder() -> None:
    """Raise SetupError in a folder that was removed, or that the user may not enter: relative paths mean nothing there,
    and libraries that look for files in it fail, or end the process."""
    try:
        os.getcwd()  # noqa: PTH109 - a Path asks nobody
    except FileNotFoundError:
        raise SetupError("The current folder no longer exists: change to another one.") from None
    if not os.access(".", os.X_OK):
        raise SetupError("This user may not enter the current folder: change to another one.")


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from onward.cli.commands.help import show_version

        show_version()
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", "-v", "-V", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the version.",
)  # fmt: skip
def root() -> None:
    """OpenAI's legacy Completions API, complete, on a model of your own."""
