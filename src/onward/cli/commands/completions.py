"""`onward completions create`."""

from __future__ import annotations

import sys
from typing import Any

import click

from onward.cli.command import CONTEXT, Group
from onward.cli.global_flags import connection_options, output_options
from onward.cli.output.errors import models_list, report_errors
from onward.cli.request.flags import click_options, complete_bare_booleans, request_flags
from onward.cli.session import Session, session_of

SECTIONS = {
    "prompt": "What to continue",
    "length": "How long",
    "sampling": "How freely",
    "choices": "How many",
    "output": "What to report",
    "stream": "Streaming",
    "other": "Other fields",
}
NO_PROMPT = "Give the text as an argument, with --prompt, or through a pipe; --prompt null starts a new document."
HELP = """Continue a text.

PROMPT, --prompt, or what is piped in is the text: `onward completions create "Once upon a time"`. Without
--base-url or OPENAI_BASE_URL a model in this process answers; with one, that server, and --model is required. Only
flags that were given are sent.

Values: `null` sends null. @FILE stands for a file's contents, @- (and - for the prompt) for standard input.
'["a", "b"]', '[1, 2]' and '"\\n"' are YAML; anything else is the text as it stands. A map piped in, JSON or YAML,
is a request body; flags win over its keys.
"""


class RequestCommand(click.Command):
    """A command whose flags are a request's; its help shows them in the table's groups."""

    def __init__(self, name: str, **attributes: Any) -> None:
        argument = click.Argument(["positional"], required=False, metavar="[PROMPT]")
        self._sections: dict[str, list[click.Parameter]] = {title: [] for title in SECTIONS.values()}
        for flag, option in zip(request_flags(), click_options(), strict=True):
            self._sections[SECTIONS[flag.row.group]].append(option)
        self._sections["What to show"] = [*_own_options(), *output_options()]
        self._sections["Who answers"] = connection_options(short_organization=True)
        options = [option for section in self._sections.values() for option in section]
        super().__init__(name, params=[argument, *options], **attributes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, complete_bare_booleans(args, self.get_params(ctx)))
        except click.NoSuchOption as problem:
            shown = [name for each in self.get_params(ctx) if not getattr(each, "hidden", False) for name in each.opts]
            raise click.NoSuchOption(problem.option_name, possibilities=shown, ctx=ctx) from None

    def sections(self, ctx: click.Context) -> dict[str, list[click.Parameter]]:
        """Every option by the title it stands under, in order."""
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
            help="Tell tokens, speed and time on stderr. Of a stream (a terminal gets one, elsewhere --stream asks for "
            "it) the time to the first token too, and the speed after it; else the speed counts the whole time.",
        ),
        click.Option(
            ["--max-items"],
            type=click.IntRange(min=1),
            metavar="N",
            help="Stop after this many chunks of a stream; asks for a stream.",
        ),
        click.Option(["--dry-run"], is_flag=True, help="Print the body that would be sent, and send nothing."),
    ]


def create(positional: str | None, **params: Any) -> None:
    session = session_of(params)
    with report_errors(session):
        from onward.cli.request.body import request_body

        fields = request_body({flag.variable: params[flag.variable] for flag in request_flags()}, positional)
        if params["max_items"] is not None:
            _ask_for_a_stream(fields)
        asks_server = session.connection.base_url is not None and not params["dry_run"]
        _check_whole(fields, models_list(session) if asks_server else None)
        if params["dry_run"]:
            _print_body(fields, session)
            return
        from onward.cli.send import Asked, ask

        ask(Asked(fields, session, stats=params["stats"], max_items=params["max_items"]))


def _check_whole(fields: dict[str, Any], models: str | None) -> None:
    """Raises UsageError that names all that is missing. `models` lists a server's models; None: a default is there."""
    from onward.cli.request.body import unknown_keys

    advice: dict[str, str] = {}
    if models is not None and "model" not in fields:
        advice["model"] = f"`{models}` shows the models of the server."
    if "prompt" not in fields:
        unknown = unknown_keys(fields)
        advice["prompt"] = f"{NO_PROMPT} In what is piped in {unknown}." if unknown else NO_PROMPT
    if advice:
        flags = "flag" if len(advice) == 1 else "flags"
        raise click.UsageError(f'Required {flags} "{", ".join(advice)}" not set. {" ".join(advice.values())}')


def _ask_for_a_stream(fields: dict[str, Any]) -> None:
    """What --max-items counts, chunks, only a stream has. Raises UsageError where none is wanted."""
    if fields.get("stream") is False:
        raise click.UsageError("--max-items counts the chunks of a stream: leave out --stream false.")
    fields["stream"] = fields.get("stream") or True


def _print_body(fields: dict[str, Any], session: Session) -> None:
    from onward.cli.output.formats import render

    shown = "json" if session.output.format in ("auto", "text") else session.output.format
    body = render(fields, format=shown, terminal=sys.stdout.isatty())
    click.echo(body.encode("utf-8", "backslashreplace").decode())  # lone surrogates, as JSON escapes them


command = Group(
    "completions",
    commands={"create": RequestCommand("create", callback=create, help=HELP, context_settings=CONTEXT)},
    help="Create completions.",
    context_settings=CONTEXT,
)
