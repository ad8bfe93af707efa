"""The whole body: standard input's, flags over it, and the prompt wherever it was given."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import click

from onward.cli.output.terminal import warn
from onward.cli.output.words import excerpt
from onward.cli.request.contents import Stdin
from onward.cli.request.flags import body_of
from onward.cli.request.values import value_of
from onward.cli.request.yaml12 import NotYaml, load
from onward.protocol.parameters import BY_NAME

_PROMPT = BY_NAME["prompt"]
_FIRST_KEY = re.compile(r"\s*([\w$]+):(?=\s|$)")
MOST_NAMED = 5
"""Unknown keys of a body that a message names."""


def request_body(
    given: Mapping[str, str | tuple[str, ...] | None], positional: str | None, stdin: Stdin | None = None
) -> dict[str, Any]:
    """The JSON body of a request: what was given, and nothing else, be it whole or not. Raises UsageError.

    What is piped in is a body when it is a map, else the prompt; a note says why where it looks like a body that
    went wrong. Flags win over the keys of a body.
    """
    stdin = stdin or Stdin()
    flags = body_of(given, stdin)
    if positional is not None:
        if "prompt" in flags:
            raise click.UsageError("The prompt was given twice: as an argument and with --prompt.")
        flags["prompt"] = value_of(_PROMPT, positional, stdin)
    piped = stdin.offered(wait="prompt" not in flags)
    return {**_piped_body(piped, flags), **flags} if piped is not None else flags


def _piped_body(piped: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    value = _mapping(piped)
    if value is not None and _is_body(piped, value, prompt_given="prompt" in flags):
        return value
    fault = _fault(piped, value)
    if "prompt" in flags:
        raise click.UsageError(
            f"Cannot merge flags with a body that is not a map: '{excerpt(piped)}' came through standard input, and a "
            "prompt was given too. Leave one out, or redirect standard input from /dev/null."
            + (f" It looks like a request body, but {fault}." if fault else "")
        )
    if fault:
        warn(f"What is piped in looks like a request body, but {fault}: all of it is the prompt. --prompt - says so.")
    return {"prompt": piped}


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        value = load(text)
    except NotYaml:
        return None
    return value if isinstance(value, dict) else None


def _is_body(text: str, value: dict[str, Any], *, prompt_given: bool) -> bool:
    """Whether a map is a body, not a text to continue.

    Braces make a body of it. A map in block style (`Q: why?`) might as well be a text: it counts as a body when
    it names nothing but parameters and leaves nothing wanting.
    """
    return _in_braces(text) or (value.keys() <= BY_NAME.keys() and (prompt_given or "prompt" in value))


def _in_braces(text: str) -> bool:
    return text.lstrip().startswith("{")


def _fault(text: str, value: dict[str, Any] | None) -> str:
    """Why a text that looks like a body is none; empty where it does not look like one."""
    if _in_braces(text):
        return f"it is no JSON object ({_json_fault(text)})"
    if value is None:
        first = _FIRST_KEY.match(text)
        return "it is no YAML" if first and first[1] in BY_NAME else ""
    if not value.keys() & BY_NAME.keys():
        return ""
    return unknown_keys(value) or "it has no prompt"


def _json_fault(text: str) -> str:
    try:
        json.loads(text)
    except json.JSONDecodeError as problem:
        return f"line {problem.lineno}, column {problem.colno}: {problem.msg}"
    except ValueError:
        return "a number has too many digits"
    except RecursionError:
        pass
    return "it is nested too deeply"


def unknown_keys(names: Iterable[str]) -> str:
    """The names that no parameter has, as a clause: `'promt' is no parameter (did you mean 'prompt'?)`."""
    clauses = []
    for name in [name for name in names if name not in BY_NAME][:MOST_NAMED]:
        near = difflib.get_close_matches(name, BY_NAME, n=1)
        clauses.append(f"{name!r} is no parameter" + (f" (did you mean {near[0]!r}?)" if near else ""))
    return ", ".join(clauses)
