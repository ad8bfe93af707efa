"""The whole body: standard input's, flags over it, and the prompt wherever it was given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from onward.cli.request.contents import Stdin
from onward.cli.request.flags import body_of
from onward.cli.request.values import value_of
from onward.cli.request.yaml12 import NotYaml, load
from onward.protocol.parameters import BY_NAME

_PROMPT = BY_NAME["prompt"]


def request_body(
    given: Mapping[str, str | tuple[str, ...] | None], positional: str | None, stdin: Stdin | None = None
) -> dict[str, Any]:
    """The JSON body of a request: what was given, and nothing else, be it whole or not. Raises UsageError.

    What is piped in is a body when it is a map, else the prompt. Flags win over the keys of a body.
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
    body = _as_map(piped, prompt_given="prompt" in flags)
    if body is not None:
        return body
    if "prompt" in flags:
        shown = piped if len(piped) <= 40 else piped[:40] + "…"
        raise click.UsageError(
            f"Cannot merge flags with a body that is not a map: {shown!r} came through standard input, and a "
            "prompt was given too. Leave one out, or redirect standard input from /dev/null."
        )
    return {"prompt": piped}


def _as_map(text: str, *, prompt_given: bool) -> dict[str, Any] | None:
    """The text as a body, None when it is a text to continue.

    Braces make a body of it. A map in block style (`Q: why?`) might as well be a text: it counts as a body when
    it names nothing but parameters and leaves nothing wanting.
    """
    try:
        value = load(text)
    except NotYaml:
        return None
    if not isinstance(value, dict):
        return None
    if text.lstrip().startswith("{"):
        return value
    return value if value.keys() <= BY_NAME.keys() and (prompt_given or "prompt" in value) else None
