"""The flags of a request, generated from the one parameter table, and the body that they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import click

from onward.cli.completers import completer
from onward.cli.request.contents import Stdin
from onward.cli.request.values import TRI_STATE_WORDS, value_of
from onward.protocol.parameter import Parameter
from onward.protocol.parameters import PARAMETERS

SHORT = {"model": "-m", "prompt": "-p", "max_tokens": "-M", "temperature": "-t", "top_p": "-P", "n": "-n"}
"""Short spellings of the old Python command line (spec/cli A2)."""

WORDS = {
    "model": "The model that writes the completion. Of a server, one that `onward models list` shows there: required "
    "with --base-url or OPENAI_BASE_URL. In this process, a built-in name, a folder or a hub id; without one, that "
    "of the settings.",
    "prompt": "The text to continue: a string, an array of strings, an array of token ids, or an array of such "
    "arrays. Required, here, as PROMPT or through a pipe; null starts a new document.",
}
"""Help where the command line asks for more, or less, than the API: its words would not hold."""

_PLACEHOLDERS = {
    "string": "TEXT",
    "integer": "INTEGER",
    "number": "NUMBER",
    "boolean": "[true|false]",
    "prompt": "TEXT|@FILE|-",
    "prediction": "TEXT|@FILE|{…}",
    "stop": "TEXT|[TEXT,…]",
    "logit_bias": "{ID: BIAS,…}",
    "object": "{KEY: VALUE,…}",
    "fixed": "VALUE",
    "duration": "TIME",
}


@dataclass(frozen=True, slots=True)
class RequestFlag:
    """One flag: `path` is where its value goes in the body, one key or two."""

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
    def collects(self) -> bool:
        """Whether the flag, given several times, adds up to a list."""
        return self.row.kind == "stop"

    @property
    def is_dialect(self) -> bool:
        """Another server's spelling: accepted, but not shown in the help."""
        return self.row.dialect is not None

    @property
    def help(self) -> str:
        words = WORDS.get(self.variable, self.row.help).replace("`", "")
        return words if self.row.default in (None, [], "") else f"{words}  [default {_word(self.row.default)}]"

    @property
    def placeholder(self) -> str:
        return _PLACEHOLDERS[self.row.kind]


@cache
def request_flags() -> tuple[RequestFlag, ...]:
    """Every flag, in the table's order. Links have none: they mean something to editors of JSON only."""
    return tuple(_each_flag(PARAMETERS))


def _each_flag(rows: Iterable[Parameter], parents: tuple[str, ...] = ()) -> Iterator[RequestFlag]:
    for row in rows:
        if row.kind == "link":
            continue
        yield RequestFlag(row, (*parents, row.name))
        yield from _each_flag(row.inner, (*parents, row.name))


def click_options() -> list[click.Parameter]:
    """A click option for each flag. Its value is the raw text, or None when it was not given; a tuple of texts
    for a flag that collects."""
    return [_click_option(flag) for flag in request_flags()]


def _click_option(flag: RequestFlag) -> click.Option:
    short = [SHORT[flag.row.name]] if len(flag.path) == 1 and flag.row.name in SHORT else []
    return click.Option(
        [flag.variable, *short, flag.flag],
        metavar=flag.placeholder,
        help=flag.help,
        hidden=flag.is_dialect,
        multiple=flag.collects,
        shell_complete=completer(flag.row),
    )


def body_of(given: Mapping[str, str | tuple[str, ...] | None], stdin: Stdin) -> dict[str, Any]:
    """The part of the body that the flags make: only what was given. Raises UsageError."""
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
        raise click.UsageError(f"{text!r} does not work for {flag.flag}: {problem}.") from None


def _collected(flag: RequestFlag, values: list[Any]) -> list[Any]:
    if None in values:
        raise click.UsageError(f"{flag.flag} null means none: leave the others out.")
    return [item for value in values for item in (value if isinstance(value, list) else [value])]


def complete_bare_booleans(arguments: list[str], options: Iterable[click.Parameter]) -> list[str]:
    """Gives each boolean flag of a request a value of its own: `--echo` alone is `--echo=true`.

    `--echo true|false|null` takes the word that follows; a dotted flag takes none, only `=false`.
    """
    booleans = {flag.flag: flag for flag in request_flags() if flag.is_boolean}
    takers = {name for option in options if _takes_value(option) for name in option.opts}
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
        elif name in takers and upcoming is not None:
            done += [argument, upcoming]
            upcoming = next(rest, None)
        else:
            done.append(argument)
    return done


def _takes_value(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not option.is_flag and not option.count


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
