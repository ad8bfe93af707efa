"""Flags that every command shares. They may stand before or after the subcommand."""

from __future__ import annotations

import click

from onward.cli.output.terminal import warn

EXPLORE = "explore"
"""Opens a viewer in OpenAI's own tool; accepted here as another name for auto."""
FORMATS = ("auto", "json", "jsonl", "pretty", "raw", "yaml", "text", EXPLORE)

_CONNECTION_OPTIONS = (
    (["--base-url", "--api-base", "-b"], "URL", "Send requests to this server, such as "
     "http://127.0.0.1:8000/v1, instead of a model in this process.  [OPENAI_BASE_URL, ONWARD_BASE_URL]"),
    (["--api-key", "-k"], "KEY", "API key for the server.  [OPENAI_API_KEY]"),
    (["--organization"], "ID", "Sent as OpenAI-Organization.  [OPENAI_ORG_ID]"),
    (["--project"], "ID", "Sent as OpenAI-Project.  [OPENAI_PROJECT_ID]"),
)  # fmt: skip


def connection_options(*, short_organization: bool = False) -> list[click.Parameter]:
    """Return the flags of the connection. `short_organization` adds -o, which names an output file elsewhere."""
    parameters: list[click.Parameter] = []
    for names, metavar, text in _CONNECTION_OPTIONS:
        short = ["-o"] if short_organization and "--organization" in names else []
        parameters.append(click.Option([*names, *short], metavar=metavar, help=text))
    text = "Log request and response headers to stderr; secrets are redacted."
    return [*parameters, click.Option(["--debug"], is_flag=True, help=text)]


def output_options(
    *, errors: bool = True, on_terminal: str = "live text", example: str = "choices.0.text"
) -> list[click.Parameter]:
    """Return the flags that format output; with `errors` also those for API errors.

    `on_terminal` describes the default output on a terminal; `example` is a GJSON path into a result.
    """
    choice = click.Choice(FORMATS, case_sensitive=False)
    results: list[click.Parameter] = [
        click.Option(
            ["--format"], type=choice, default="auto", callback=_replace_explorer,
            help=f"Output format. auto: {on_terminal} on a terminal, JSON elsewhere. "
            f"text: {on_terminal.removeprefix('live ')} everywhere. json: indented JSON. jsonl: JSON on one line. "
            "pretty: a box of keys and values. raw: JSON as received. yaml: YAML. explore: same as auto.",
        ),
        click.Option(
            ["--transform"], metavar="PATH",
            help="Print only the part of each result that this GJSON path selects"
            + (f", such as {example}." if example else "."),
        ),
        click.Option(["raw_output", "-r", "--raw-output"], is_flag=True, help="Print strings without quotes."),
    ]  # fmt: skip
    error_flags: list[click.Parameter] = [
        click.Option(
            ["--format-error"], type=choice, default="auto", callback=_replace_explorer,
            help="Format of API errors on stderr. auto: a sentence. explore: same as auto.",
        ),
        click.Option(["--transform-error"], metavar="PATH", help="Same as --transform, for API errors."),
    ]  # fmt: skip
    return [*results, *(error_flags if errors else [])]


def _replace_explorer(ctx: click.Context, flag: click.Parameter, chosen: str) -> str:
    if chosen != EXPLORE:
        return chosen
    if not ctx.resilient_parsing:  # shell completion must stay silent
        warn(f"{flag.opts[0]} {EXPLORE}: onward has no explorer; using auto")
    return "auto"


def _global_flags() -> dict[str, bool]:
    """Return every spelling of a global flag, and whether it takes a value."""
    every = [*connection_options(short_organization=True), *output_options()]
    return {name: not option.is_flag for option in every if isinstance(option, click.Option) for name in option.opts}


def hoist(arguments: list[str]) -> list[str]:
    """Return the arguments with global flags before a subcommand moved after its name, where they are declared."""
    end, takes_value = 0, _global_flags()
    while end < len(arguments) and arguments[end].startswith("-"):
        name, separator, _ = arguments[end].partition("=")
        if name not in takes_value or (separator and not takes_value[name]):
            return arguments
        end += 2 if takes_value[name] and not separator else 1
    if end == 0 or end >= len(arguments):
        return arguments
    return [arguments[end], *arguments[:end], *arguments[end + 1 :]]
