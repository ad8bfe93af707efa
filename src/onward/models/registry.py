"""Names of models: the built-in ones, the list that clients see, and suggestions for unknown ones."""

from __future__ import annotations

import difflib
import shutil
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BUILT_IN = ("storyteller",)
"""Models inside the package, each a folder next to this file."""
UNLISTED = ("toy",)
"""Built-in models for tests and demonstrations: accepted by name, but not listed."""

OWNER = "onward"


def real_model_hint() -> str:
    """Return a hint for users of the built-in model, which is only a toy."""
    return f"A real small model (98 MB, downloaded once): {real_model_command()}"


def real_model_command() -> str:
    """Return the command that serves a real small model."""
    return f"{program()} serve smollm2"


def program() -> str:
    """Return what this program's commands begin with: its name if that finds it, or else how it was called. Clients see
    it, so it is never an absolute path."""
    started, found = sys.argv[0], shutil.which("onward")
    with suppress(OSError):
        if found is not None and Path(found).samefile(started):
            return "onward"
    return started if Path(started).stem == "onward" and not Path(started).is_absolute() else "onward"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A name that requests may use. `created` is in Unix seconds. `model` is the id of the model that answers, "" where
    that is `id` itself. `parent` is the id of the model that an adapter changes, "" without one."""

    id: str
    created: int
    owned_by: str
    model: str = ""
    parent: str = ""


def listed_models(
    created: Mapping[str, int],
    aliases: Mapping[str, str],
    openai_names: Mapping[str, str],
    parents: Mapping[str, str],
) -> list[ListedModel]:
    """Return every name that requests may use: models by id, then aliases, then OpenAI's names, whose owner says which
    model answers. `created`: Unix times in seconds. `parents`: of adapters."""
    models = [
        ListedModel(id=name, created=time, owned_by=owner(name), parent=parents.get(name, ""))
        for name, time in created.items()
    ]
    models += [
        ListedModel(id=name, created=created[target], owned_by=owner(target), model=target)
        for name, target in aliases.items()
    ]
    return models + [
        ListedModel(id=name, created=created[target], owned_by=f"alias of {target}", model=target)
        for name, target in openai_names.items()
    ]


def owner(model_id: str) -> str:
    """Return the organisation of a hub id, OWNER for a local model."""
    organisation, slash, _ = model_id.partition("/")
    return organisation if slash else OWNER


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a space and a question with the most similar of the `known` names, "" if none is similar."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
