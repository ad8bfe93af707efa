"""Where requests go and how results are written, from flags and environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from onward.settings import Resolved

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A token of RFC 9110."""
_ANNOUNCED = "onward.cli.session"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConnection:
    """Where requests go. `base_url` None: a model in this process. `origin`: the flag or variable that set it."""

    base_url: str | None = None
    origin: str = "default"
    api_key: str | None = field(default=None, repr=False)
    organization: str | None = None
    project: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    debug: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How results and errors are formatted."""

    format: str = "auto"
    format_error: str = "auto"
    transform: str | None = None
    transform_error: str | None = None
    raw_strings: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """What the global flags and the environment say about one run of a command."""

    connection: ServerConnection
    output: Output


def session_of(params: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Session:
    """Return the session that flags and environment describe. Raises UsageError for what is no URL, for flags of
    a connection without one, and for credentials that a header cannot carry, if they are sent."""
    environ = os.environ if environ is None else environ
    base_url, origin = _base_url(params, environ)
    if base_url is None and "base_url" in params and not params.get("dry_run"):
        _refuse_connection_flags(params)
    sent = {} if base_url is None else environ
    # ONWARD_API_KEY lists the keys of the user's own server: the first is sent only to the one of ONWARD_BASE_URL.
    own = sent.get("ONWARD_API_KEY", "").split(",")[0] if origin == "ONWARD_BASE_URL" else ""
    connection = ServerConnection(
        base_url=base_url,
        origin=origin,
        api_key=_header_value(
            {"--api-key": params.get("api_key"), "ONWARD_API_KEY": own, "OPENAI_API_KEY": sent.get("OPENAI_API_KEY")}
        ),
        organization=_header_value(
            {"--organization": params.get("organization"), "OPENAI_ORG_ID": sent.get("OPENAI_ORG_ID")}
        ),
        project=_header_value({"--project": params.get("project"), "OPENAI_PROJECT_ID": sent.get("OPENAI_PROJECT_ID")}),
        headers=_custom_headers(sent.get("OPENAI_CUSTOM_HEADERS", "")),
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
    from onward.network import is_http_url

    sources = (
        (params.get("base_url"), "--base-url"),
        (params.get("server"), "--server"),
        (environ.get("ONWARD_BASE_URL"), "ONWARD_BASE_URL"),
        (environ.get("OPENAI_BASE_URL"), "OPENAI_BASE_URL"),
    )
    for value, origin in sources:
        if value:
            if not value.lower().startswith(("http://", "https://")):
                shown = value.rpartition("@")[2]  # the part before it may be a password
                raise click.UsageError(f'{origin} "{shown}" is missing a scheme (expected http:// or https://)')
            if not is_http_url(value):
                raise click.UsageError(f"{origin} is not a valid URL, such as http://HOST:PORT/v1.")
            return value.rstrip("/"), origin
    return None, "default"


def _refuse_connection_flags(params: Mapping[str, Any]) -> None:
    """Raise UsageError for a flag that says how a server is asked, where none is."""
    for name in ("api_key", "organization", "project", "debug"):
        if params.get(name):
            raise click.UsageError(
                f"--{name.replace('_', '-')} is for requests to a server, and the model runs in this process: name one "
                "with --base-url URL or OPENAI_BASE_URL, or leave it out."
            )


def _header_value(given: Mapping[str, str | None]) -> str | None:
    """Return the first text that is not empty, stripped; keys are the flags or variables that the texts come from.
    Raises UsageError, which does not show the text, for characters that a header cannot carry."""
    for origin, text in given.items():
        if text := (text or "").strip():
            if not (text.isascii() and text.isprintable()):
                raise click.UsageError(f"{origin} contains characters that are not allowed in an HTTP header.")
            return text
    return None


def _custom_headers(lines: str) -> dict[str, str]:
    """Parse `Name: value`, one header per line. Raises UsageError."""
    pairs = (line.partition(":") for line in lines.splitlines() if ":" in line)
    named = {name.strip(): value for name, _, value in pairs if name.strip()}
    for name in named:
        if not _HEADER_NAME.fullmatch(name):
            raise click.UsageError("OPENAI_CUSTOM_HEADERS contains a name that no HTTP header can have.")
    return {name: _header_value({"OPENAI_CUSTOM_HEADERS": value}) or "" for name, value in named.items()}


def announce(resolved: Resolved) -> None:
    """Print one line on stderr, also where it is not a terminal, and once per command: what the onward.toml of the
    current folder, which no flag or variable named, was used for."""
    line = resolved.announcement
    context = click.get_current_context(silent=True)
    if line is None or (context is not None and context.meta.get(_ANNOUNCED)):
        return
    if context is not None:
        context.meta[_ANNOUNCED] = True
    click.echo(f"onward: {line}.", err=True)
