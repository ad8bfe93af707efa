"""`onward completions create`."""

from __future__ import annotations

import sys
from typing import Any

import click

from onward.cli.command import CONTEXT, CommandGroup
from onward.cli.global_flags import connection_options, output_options
from onward.cli.output.errors import list_models_command, report_errors
from onward.cli.output.formats import render
from onward.cli.request.body import request_body, unknown_keys
from onward.cli.request.flags import click_options, complete_bare_booleans, request_flags
from onward.cli.session import Session, session_of
from onward.cli.settings_command import setting, setting_flag

SECTIONS = {
    "prompt": "Prompt",
    "length": "Length",
    "sampling": "Sampling",
    "constraint": "Constraints on the text",
    "choices": "Choices",
    "output": "What is returned",
    "stream": "Streaming",
    "other": "Other fields",
}
NO_PROMPT = "Pass the text as an argument, with --prompt, or through a pipe; --prompt null starts a new document."
HELP = """Create a completion of a prompt.

Pass the prompt as PROMPT, with --prompt, or through a pipe: `onward completions create "Once upon a time"`. The
request goes to the server of --base-url or OPENAI_BASE_URL, where --model is required; without either, a model runs
in this process. Only flags that you set are sent.

Values: `null` sends null. @FILE reads a file, @- (and - for the prompt) standard input. '["a", "b"]', '[1, 2]' and
'"\\n"' are YAML; anything else is literal text. A JSON or YAML map on standard input is a request body; flags
override its keys.
"""


class RequestCommand(click.Command):
    """A command whose flags are the request parameters, shown in groups in its help."""

    def __init__(self, name: str, **attributes: Any) -> None:
        argument = click.Argument(["positional"], required=False, metavar="[PROMPT]")
        self._sections: dict[str, list[click.Parameter]] = {title: [] for title in SECTIONS.values()}
        for flag, option in zip(request_flags(), click_options(), strict=True):
            self._sections[SECTIONS[flag.row.group]].append(option)
        self._sections["Output"] = [*_own_options(), *output_options()]
        self._sections["Model in this process"] = _local_options()
        self._sections["Connection"] = connection_options(short_organization=True)
        options = [option for section in self._sections.values() for option in section]
        super().__init__(name, params=[argument, *options], **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, complete_bare_booleans(args, self.get_params(ctx)))

    def sections(self, ctx: click.Context) -> dict[str, list[click.Parameter]]:
        """Return the options of each section of the help, in order."""
        known = {id(option) for options in self._sections.values() for option in options}
        others = [each for each in self.get_params(ctx) if id(each) not in known and isinstance(each, click.Option)]
        return {**self._sections, "Help": list(others)}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, parameters in self.sections(ctx).items():
            records = [record for each in parameters if (record := each.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _own_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--stats"],
            is_flag=True,
            help="Print tokens, speed and time to stderr. For a stream (the default on a terminal; --stream elsewhere) "
            "also the time to the first token, and the speed after it; otherwise the speed of the whole request.",
        ),
        click.Option(
            ["--max-items"],
            type=click.IntRange(min=1),
            metavar="N",
            help="Stop after this many chunks of a stream. Implies --stream.",
        ),
        click.Option(["--dry-run"], is_flag=True, help="Print the request body without sending it."),
    ]


def _local_options() -> list[click.Parameter]:
    """Return the flags of a model in this process."""
    return [setting_flag(setting("precision"))]


def create(positional: str | None, **params: Any) -> None:
    session = session_of(params)
    with report_errors(session):
        fields = request_body({flag.variable: params[flag.variable] for flag in request_flags()}, positional)
        if params["max_items"] is not None:
            _require_stream(fields)
        uses_server = session.connection.base_url is not None and not params["dry_run"]
        _check_required(fields, list_models_command(session) if uses_server else None)
        if params["dry_run"]:
            _print_body(fields, session)
            return
        from onward.cli.send import Call, send

        settings = _local_settings(params, session)
        send(Call(fields, session, settings=settings, show_stats=params["stats"], max_items=params["max_items"]))


def _local_settings(params: dict[str, Any], session: Session) -> dict[str, str]:
    """Return the settings from flags for a model in this process. Raises UsageError if a server is used."""
    if params["precision"] is None:
        return {}
    if session.connection.base_url is not None:
        origin = session.connection.origin
        remedy = "leave out one of them" if origin == "--base-url" else f"unset {origin} to use one"
        raise click.UsageError(f"--precision is for a model in this process, but {origin} names a server: {remedy}.")
    return {"precision": params["precision"]}


def _check_required(fields: dict[str, Any], list_models: str | None) -> None:
    """Raise UsageError naming every required flag that is missing.

    `list_models` is the command that lists the server's models; None: a model is not required.
    """
    advice: dict[str, str] = {}
    if list_models is not None and "model" not in fields:
        advice["model"] = f"`{list_models}` shows the models of the server."
    if "prompt" not in fields:
        unknown = unknown_keys(fields)
        advice["prompt"] = f"{NO_PROMPT} In the request body on standard input, {unknown}." if unknown else NO_PROMPT
    if advice:
        flags = "flag" if len(advice) == 1 else "flags"
        raise click.UsageError(f'Required {flags} "{", ".join(advice)}" not set. {" ".join(advice.values())}')


def _require_stream(fields: dict[str, Any]) -> None:
    """Turn streaming on: --max-items counts chunks. Raises UsageError if the request turns it off."""
    if fields.get("stream") is False:
        raise click.UsageError("--max-items counts the chunks of a stream: remove --stream false.")
    fields["stream"] = fields.get("stream") or True


def _print_body(fields: dict[str, Any], session: Session) -> None:
    shown = "json" if session.output.format in ("auto", "text") else session.output.format
    body = render(fields, format=shown, terminal=sys.stdout.isatty())
    click.echo(body.encode("utf-8", "backslashreplace").decode())  # lone surrogates, escaped as in JSON


command = CommandGroup(
    "completions",
    commands={"create": RequestCommand("create", callback=create, help=HELP, context_settings=CONTEXT)},
    help="Create completions.",
    context_settings=CONTEXT,
)
