"""The names that models go by: the built-in ones, the list that clients see, and what a mistyped one meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from onward.protocol.models import Model

BUILT_IN = ("storyteller",)
"""Models inside the package; each is a folder of this room."""
UNLISTED = ("toy",)
"""Built-in models for tests and demonstrations: accepted by name, offered nowhere."""

OWNER = "onward"


def listed_models(created: Mapping[str, int], aliases: Mapping[str, str]) -> list[Model]:
    """Every name that can be asked for: models by id with their Unix times, then aliases as copies of theirs."""
    models = [Model(id=name, created=time, owned_by=owner(name)) for name, time in created.items()]
    others = [Model(id=alias, created=created[target], owned_by=owner(target)) for alias, target in aliases.items()]
    return models + others


def owner(model_id: str) -> str:
    """The organisation of a hub id; Onward for what is local."""
    organisation, slash, _ = model_id.partition("/")
    return organisation if slash else OWNER


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest of `known` names, led by a space; empty when none is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
