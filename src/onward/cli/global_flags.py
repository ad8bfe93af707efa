"""Flags that every command shares. They may stand before or after the subcommand."""

from __future__ import annotations

import click

from onward.cli.output.terminal import warn

EXPLORE = "explore"
"""Opens a viewer in OpenAI's own tool; accepted here as another name for auto."""
FORMATS = ("auto", "json", "jsonl", "pretty", "raw", "yaml", "text", EXPLORE)

_CONNECTION_OPTIONS = (
    (["--base-url", "--api-base", "-b"], "URL", "Ask the server at this address, such as "
     "http://127.0.0.1:8000/v1, instead of a model in this process.  [OPENAI_BASE_URL, ONWARD_BASE_URL]"),
    (["--api-key", "-k"], "KEY", "Key to present to the server.  [OPENAI_API_KEY]"),
    (["--organization"], "ID", "Sent as OpenAI-Organization.  [OPENAI_ORG_ID]"),
    (["--project"], "ID", "Sent as OpenAI-Project.  [OPENAI_PROJECT_ID]"),
)  # fmt: skip


def connection_options(*, short_organization: bool = False) -> list[click.Parameter]:
    """`short_organization` adds the old command line's -o, which is an output file elsewhere."""
    made: list[click.Parameter] = []
    for names, metavar, text in _CONNECTION_OPTIONS:
        short = ["-o"] if short_organization and "--organization" in names else []
        made.append(click.Option([*names, *short], metavar=metavar, help=text))
    text = "Log the headers of requests and answers to stderr, secrets left out."
    return [*made, click.Option(["--debug"], is_flag=True, help=text)]


def output_options(
    *, errors: bool = True, people: str = "live text", example: str = "choices.0.text"
) -> list[click.Parameter]:
    """`errors`: those of API errors too. `people`: what a person gets; `example`: a path into a result."""
    choice = click.Choice(FORMATS, case_sensitive=False)
    results: list[click.Parameter] = [
        click.Option(
            ["--format"], type=choice, default="auto", callback=_without_explorer,
            help=f"How results are written. auto: {people} on a terminal, JSON elsewhere. "
            f"text: {people.removeprefix('live ')} everywhere. "
            "json: indented. jsonl: on one line. pretty: a box of keys and values. raw: JSON as it came. yaml: YAML. "
            "explore: as auto.",
        ),
        click.Option(
            ["--transform"], metavar="PATH",
            help=f"Show only what this GJSON path finds in each result, such as {example}.",
        ),
        click.Option(["raw_output", "-r", "--raw-output"], is_flag=True, help="Strings without quotes."),
    ]  # fmt: skip
    of_errors: list[click.Parameter] = [
        click.Option(
            ["--format-error"], type=choice, default="auto", callback=_without_explorer,
            help="How an API error is written to stderr. auto: in words. explore: as auto.",
        ),
        click.Option(["--transform-error"], metavar="PATH", help="As --transform, for API errors."),
    ]  # fmt: skip
    return [*results, *(of_errors if errors else [])]


def _without_explorer(ctx: click.Context, flag: click.Parameter, chosen: str) -> str:
    if chosen != EXPLORE:
        return chosen
    if not ctx.resilient_parsing:  # a shell that completes wants no remarks
        warn(f"{flag.opts[0]} {EXPLORE}: there is no explorer here, so auto is used")
    return "auto"


def _global_flags() -> dict[str, bool]:
    """Every name of a global flag, and whether it takes a value."""
    every = [*connection_options(short_organization=True), *output_options()]
    return {name: not option.is_flag for option in every if isinstance(option, click.Option) for name in option.opts}


def hoist(arguments: list[str]) -> list[str]:
    """Moves global flags that stand before a subcommand behind its name, where they are declared."""
    end, takes_value = 0, _global_flags()
    while end < len(arguments) and arguments[end].startswith("-"):
        name, separator, _ = arguments[end].partition("=")
        if name not in takes_value or (separator and not takes_value[name]):
            return arguments
        end += 2 if takes_value[name] and not separator else 1
    if end == 0 or end >= len(arguments):
        return arguments
    return [arguments[end], *arguments[:end], *arguments[end + 1 :]]
