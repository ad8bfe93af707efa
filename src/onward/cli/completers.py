"""Values that a shell completes for flags and arguments: model names, words, and files after an @."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import click

from onward.api.parameter import Parameter

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def completer(row: Parameter) -> Completer | None:
    """Return the function that completes this parameter's values; None if there is nothing to offer."""
    if row.name == "model":
        return model_names
    if row.kind == "boolean":
        return one_of("true", "false", "null")
    if row.only:
        return one_of(*(value if isinstance(value, str) else json.dumps(value) for value in row.only))
    return _files if row.kind in ("prompt", "prediction", "string", "stop", "json_schema") else None


def model_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the built-in models, those of the catalogue, and those in the current folder."""
    from onward.models.catalogue import catalogue
    from onward.models.registry import BUILT_IN
    from onward.models.resolve import models_here

    return [name for name in (*BUILT_IN, *catalogue(), *map(str, models_here())) if name.startswith(incomplete)]


def catalogue_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the models of the catalogue."""
    from onward.models.catalogue import catalogue

    return [name for name in catalogue() if name.startswith(incomplete)]


def one_of(*words: str) -> Completer:
    """Return a function that completes these words."""
    return lambda context, parameter, incomplete: [word for word in words if word.startswith(incomplete)]


def _files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    if not incomplete.startswith("@"):
        return []
    folder, slash, name = incomplete[1:].rpartition("/")
    place = Path(folder + slash) if folder or slash else Path()
    if not place.is_dir():
        return []
    found = sorted(path for path in place.iterdir() if path.name.startswith(name))
    return [f"@{folder}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in found]
