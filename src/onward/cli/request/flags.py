"""The flags of a request, generated from the parameter table, and the body they produce."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import click

from onward.api.openai.parameters import PARAMETERS
from onward.api.parameter import Parameter
from onward.cli.completers import completer
from onward.cli.request.contents import Stdin
from onward.cli.request.values import TRI_STATE_WORDS, value_of

SHORT = {"model": "-m", "prompt": "-p", "max_tokens": "-M", "temperature": "-t", "top_p": "-P", "n": "-n"}
"""Short flags of OpenAI's old command line."""

HELP = {
    "model": "Model to use. For a server, one that `onward models list` shows: required with --base-url or "
    "OPENAI_BASE_URL. In this process, a built-in name, a folder or a hub id; the default is that of the settings.",
    "prompt": "The prompt: a string, an array of strings, an array of token ids, or an array of such arrays. Required: "
    "with this flag, as PROMPT or through a pipe; null starts a new document.",
}
"""Help of flags whose requirements differ from the API's."""

_PLACEHOLDERS = {
    "string": "TEXT",
    "integer": "INTEGER",
    "number": "NUMBER",
    "boolean": "[true|false]",
    "prompt": "TEXT|@FILE|-",
    "prediction": "TEXT|@FILE|{…}",
    "stop": "TEXT|[TEXT,…]",
    "strings": "TEXT|[TEXT,…]",
    "token_ids": "[ID,…]",
    "json_schema": "{…}|@FILE",
    "response_format": "json_object|{…}",
    "logit_bias": "{ID: BIAS,…}",
    "object": "{KEY: VALUE,…}",
    "fixed": "VALUE",
    "duration": "TIME",
}


@dataclass(frozen=True, slots=True)
class RequestFlag:
    """One flag. `path`: the keys of its value in the body, one or two."""

    row: Parameter
    path: tuple[str, ...]

    @property
    def flag(self) -> str:
        return "--" + ".".join(self.path).replace("_", "-")

    @property
    def variable(self) -> str:
        return "__".join(self.path)

    @property
    def is_boolean(self) -> bool:
        return self.row.kind == "boolean"

    @property
    def is_repeatable(self) -> bool:
        """Whether values of the repeated flag form a list."""
        return self.row.kind in ("stop", "strings")

    @property
    def is_compatibility_flag(self) -> bool:
        """Whether it is another server's parameter: accepted, but not shown in the help."""
        return self.row.dialect is not None

    @property
    def help(self) -> str:
        words = HELP.get(self.variable, self.row.help).replace("`", "")
        return words if self.row.default in (None, [], "") else f"{words}  [default {_word(self.row.default)}]"

    @property
    def placeholder(self) -> str:
        return _PLACEHOLDERS[self.row.kind]


@cache
def request_flags() -> tuple[RequestFlag, ...]:
    """Return every flag, in table order. Links such as `$schema` have none: they only matter to JSON editors."""
    return tuple(_each_flag(PARAMETERS))


def _each_flag(rows: Iterable[Parameter], parents: tuple[str, ...] = ()) -> Iterator[RequestFlag]:
    for row in rows:
        if row.kind == "link":
            continue
        yield RequestFlag(row, (*parents, row.name))
        yield from _each_flag(row.inner, (*parents, row.name))


def click_options() -> list[click.Parameter]:
    """Return one click option per flag. Its value is the raw text, None if absent; a tuple of texts if repeatable."""
    return [_click_option(flag) for flag in request_flags()]


def _click_option(flag: RequestFlag) -> click.Option:
    short = [SHORT[flag.row.name]] if len(flag.path) == 1 and flag.row.name in SHORT else []
    return click.Option(
        [flag.variable, *short, flag.flag],
        metavar=flag.placeholder,
        help=flag.help,
        hidden=flag.is_compatibility_flag,
        multiple=flag.is_repeatable,
        shell_complete=completer(flag.row),
    )


def body_of(given: Mapping[str, str | tuple[str, ...] | None], stdin: Stdin) -> dict[str, Any]:
    """Return the fields of the body that flags set. Raises UsageError."""
    body: dict[str, Any] = {}
    for flag in request_flags():
        raw = given.get(flag.variable)
        texts = (raw,) if isinstance(raw, str) else raw or ()
        if not texts:
            continue
        values = [_value(flag, text, stdin) for text in texts]
        value = values[0] if len(values) == 1 else _collected(flag, values)
        if len(flag.path) == 1:
            body[flag.row.name] = value
        else:
            outer = body.get(flag.path[0])
            body[flag.path[0]] = {**(outer or {}), flag.row.name: value}
    return body


def _value(flag: RequestFlag, text: str, stdin: Stdin) -> Any:
    try:
        return value_of(flag.row, text, stdin)
    except ValueError as problem:
        raise click.UsageError(f"Invalid value {text!r} for {flag.flag}: {problem}.") from None


def _collected(flag: RequestFlag, values: list[Any]) -> list[Any]:
    if None in values:
        raise click.UsageError(f"{flag.flag} null cannot be combined with other values.")
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def complete_bare_booleans(arguments: list[str], options: Iterable[click.Parameter]) -> list[str]:
    """Return the arguments with an explicit value for each boolean request flag: `--echo` becomes `--echo=true`.

    `--echo true|false|null` takes the next argument as its value; a dotted flag only takes `=false`.
    """
    booleans = {flag.flag: flag for flag in request_flags() if flag.is_boolean}
    names_with_value = {name for option in options if _takes_value(option) for name in option.opts}
    done: list[str] = []
    rest = iter(arguments)
    upcoming = next(rest, None)
    while upcoming is not None:
        argument, upcoming = upcoming, next(rest, None)
        if argument == "--":
            return [*done, argument, *([upcoming] if upcoming is not None else []), *rest]
        name = argument.replace("_", "-") if argument.startswith("--") else argument
        if name in booleans:
            takes_next = len(booleans[name].path) == 1 and (upcoming or "").lower() in TRI_STATE_WORDS
            done.append(f"{name}={upcoming}" if takes_next else f"{name}=true")
            if takes_next:
                upcoming = next(rest, None)
        elif name in names_with_value and upcoming is not None:
            done += [argument, upcoming]
            upcoming = next(rest, None)
        else:
            done.append(argument)
    return done


def _takes_value(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not option.is_flag and not option.count


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
