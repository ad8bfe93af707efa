"""The request body: standard input, overridden by flags, and the prompt from wherever it was given."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import click

from onward.api.openai.parameters import BY_NAME
from onward.cli.command import text_of
from onward.cli.output.terminal import excerpt, warn
from onward.cli.request.contents import Stdin
from onward.cli.request.flags import body_of
from onward.cli.request.values import value_of
from onward.cli.request.yaml12 import NotYaml, load

_PROMPT = BY_NAME["prompt"]
_FIRST_KEY = re.compile(r"\s*([\w$]+):(?=\s|$)")
MAX_NAMED_KEYS = 5
"""How many unknown keys of a body a message names."""


def request_body(given: Mapping[str, str | tuple[str, ...] | None], positional: str | None) -> dict[str, Any]:
    """Return the JSON body of a request, complete or not, with only the fields that were given. Raises UsageError.

    Standard input is a body if it is a map, otherwise the prompt; a note explains why if it resembles a body. Flags
    override the keys of a body.
    """
    stdin = Stdin()
    flags: dict[str, Any] = body_of(given, stdin)
    if positional is not None:
        if "prompt" in flags:
            raise click.UsageError("The prompt was passed twice: as an argument and with --prompt.")
        flags["prompt"] = value_of(_PROMPT, positional, stdin)
    flags = {name: value if name == "model" else _texts(value) for name, value in flags.items()}
    piped = stdin.offered(wait="prompt" not in flags)
    return {**_piped_body(piped, flags), **flags} if piped is not None else flags


def _texts(value: Any) -> Any:
    """Return a value with the text of each string in it."""
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, list):
        return [_texts(each) for each in value]
    return {_texts(key): _texts(each) for key, each in value.items()} if isinstance(value, dict) else value


def _piped_body(piped: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    value = _mapping(piped)
    if value is not None and _is_body(piped, value, prompt_given="prompt" in flags):
        return value
    problem = _why_not_a_body(piped, value)
    if "prompt" in flags:
        raise click.UsageError(
            f"Cannot merge flags with a body that is not a map: '{excerpt(piped)}' was read from standard input, and a "
            "prompt was passed as well. Remove one, or redirect standard input from /dev/null."
            + (f" It looks like a request body, but {problem}." if problem else "")
        )
    if problem:
        warn(f"Standard input looks like a request body, but {problem}; using all of it as the prompt.")
    return {"prompt": piped}


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        value = load(text)
    except NotYaml:
        return None
    return value if isinstance(value, dict) else None


def _is_body(text: str, value: dict[str, Any], *, prompt_given: bool) -> bool:
    """Return whether a map is a body rather than a prompt.

    A map in braces is a body. A map in block style (`Q: why?`) may be a prompt: it is a body only if all its keys
    are parameters and a prompt is known.
    """
    return _in_braces(text) or (value.keys() <= BY_NAME.keys() and (prompt_given or "prompt" in value))


def _in_braces(text: str) -> bool:
    return text.lstrip().startswith("{")


def _why_not_a_body(text: str, value: dict[str, Any] | None) -> str:
    """Return why a text that looks like a body is not one; empty if it does not look like one."""
    if _in_braces(text):
        return f"it is not a JSON object ({_json_problem(text)})"
    if value is None:
        first = _FIRST_KEY.match(text)
        return "it is not valid YAML" if first and first[1] in BY_NAME else ""
    if not value.keys() & BY_NAME.keys():
        return ""
    return unknown_keys(value) or "it has no prompt"


def _json_problem(text: str) -> str:
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
    """Return a clause about names that are not parameters: `'promt' is not a parameter (did you mean 'prompt'?)`."""
    clauses = []
    for name in [name for name in names if name not in BY_NAME][:MAX_NAMED_KEYS]:
        near = difflib.get_close_matches(name, BY_NAME, n=1)
        clauses.append(f"{name!r} is not a parameter" + (f" (did you mean {near[0]!r}?)" if near else ""))
    return ", ".join(clauses)
