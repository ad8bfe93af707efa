"""The global flags: who is asked, and how answers are written. They may stand before or after the subcommand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from onward.cli.show.failures import told
from onward.cli.show.terminal import warn

CONTEXT: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": lambda token: token.replace("_", "-"),
}
"""Of every command: names of flags may be written with underscores, as the old command line did."""
EXPLORE = "explore"
"""Opens a viewer in OpenAI's own tool; here the name is taken and stands for auto."""
FORMATS = ("auto", "json", "jsonl", "pretty", "raw", "yaml", "text", EXPLORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where requests go. `base_url` None: to a model in this process. `origin` names what said so."""

    base_url: str | None = None
    origin: str = "default"
    api_key: str | None = field(default=None, repr=False)
    organization: str | None = None
    project: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    debug: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How results and errors are written."""

    format: str = "auto"
    format_error: str = "auto"
    transform: str | None = None
    transform_error: str | None = None
    raw_strings: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    connection: Connection
    output: Output


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


def session_of(params: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Session:
    """What flags and environment say together. Raises UsageError for an address without a scheme."""
    environ = os.environ if environ is None else environ
    base_url, origin = _base_url(params, environ)
    connection = Connection(
        base_url=base_url,
        origin=origin,
        api_key=_header_value("API key", params.get("api_key") or _key(origin, environ)),
        organization=_header_value("organization", params.get("organization") or environ.get("OPENAI_ORG_ID")),
        project=_header_value("project", params.get("project") or environ.get("OPENAI_PROJECT_ID")),
        headers=_custom_headers(environ.get("OPENAI_CUSTOM_HEADERS", "")),
        debug=bool(params.get("debug")),
    )
    output = Output(
        format=params.get("format") or "auto",
        format_error=params.get("format_error") or "auto",
        transform=params.get("transform"),
        transform_error=params.get("transform_error"),
        raw_strings=bool(params.get("raw_output")),
    )
    return Session(connection, output)


def _base_url(params: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str | None, str]:
    sources = (
        (params.get("base_url"), "--base-url"),
        (environ.get("ONWARD_BASE_URL"), "ONWARD_BASE_URL"),
        (environ.get("OPENAI_BASE_URL"), "OPENAI_BASE_URL"),
    )
    for value, origin in sources:
        if value:
            if not value.lower().startswith(("http://", "https://")):
                raise click.UsageError(f'{origin} "{value}" is missing a scheme (expected http:// or https://)')
            return value.rstrip("/"), origin
    return None, "default"


def _key(origin: str, environ: Mapping[str, str]) -> str | None:
    """ONWARD_API_KEY lists the keys of a server of one's own: it goes to the server that ONWARD_BASE_URL names
    and to no other."""
    own = environ.get("ONWARD_API_KEY", "").split(",")[0].strip() if origin == "ONWARD_BASE_URL" else ""
    return own or environ.get("OPENAI_API_KEY") or None


def _header_value(what: str, text: str | None) -> str | None:
    """Without white space around it. Raises UsageError for what cannot travel in a header; does not show it."""
    text = (text or "").strip()
    if not (text.isascii() and text.isprintable()):
        raise click.UsageError(f"The {what} holds characters that cannot travel in a header.")
    return text or None


def _custom_headers(lines: str) -> dict[str, str]:
    """`Name: value`, one a line."""
    pairs = (line.partition(":") for line in lines.splitlines() if ":" in line)
    return {name.strip(): _header_value(name, value) or "" for name, _, value in pairs if name.strip()}


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


class Group(click.Group):
    """A group of commands that passes global flags on to them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, hoist(args))


def session_command(
    name: str,
    callback: Callable[..., None],
    help: str,
    params: Iterable[click.Parameter] = (),
    *,
    shows: bool = True,
    connects: bool = True,
    example: str = "",
) -> click.Command:
    """A command that takes the global flags. Its callback gets `session` and its own parameters.

    `shows` False: it writes no results to standard output, and the flags that format them are left out; else
    `example` is a path into them.
    `connects` False: it asks nobody, and flags and variables that say whom to ask mean nothing to it.
    """

    def run(**given: Any) -> None:
        own = {parameter.name: given[parameter.name] for parameter in params if parameter.name}
        session = session_of(given, None if connects else {})
        with told(session):
            callback(session=session, **own)

    params = list(params)
    every = [
        *params,
        *(output_options(errors=connects, people="a table or words", example=example) if shows else []),
        *(connection_options() if connects else []),
    ]
    return click.Command(name, callback=run, help=help, params=every, context_settings=CONTEXT)
