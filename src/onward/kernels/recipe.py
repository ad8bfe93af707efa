"""Modules that need not be written to know whether they were compiled before: writing one takes a third of a second.

A module follows from the sources of the packages that write it and from a few facts. Their digest captures both, as
long as the sources on disk are what this process imported: a process that keeps running while a new version is
installed must not store old code under the new version's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import llvmlite

_CLOCK_STEP_NS = 20_000_000
"""File systems' clocks are this coarse."""


@dataclass(frozen=True)
class Recipe:
    """How a module is written: `text` returns it, by the code of `packages` and from `facts` alone.

    A package has IMPORTED_NS, which its __init__ sets to the time, before any of its modules is imported. The repr of
    the facts says all about them.
    """

    text: Callable[[], str]
    facts: tuple[object, ...]
    packages: tuple[ModuleType, ...]

    def digest(self, known: Sources | None = None) -> str | None:
        """Return a digest of all that decides the text, None if sources may have changed since they were imported.
        `known`: digests of packages' sources, to which these are added."""
        known = {} if known is None else known
        if self.packages not in known:
            known[self.packages] = _digest_of_sources(self.packages)
        sources = known[self.packages]
        facts = repr((llvmlite.__version__, self.facts, sources))
        return None if sources is None else sha256(facts.encode()).hexdigest()


Sources = dict[tuple[ModuleType, ...], str | None]
"""By packages."""


def _digest_of_sources(packages: tuple[ModuleType, ...]) -> str | None:
    total = sha256()
    try:
        for package in packages:
            paths = sorted(Path(package.__path__[0]).glob("*.py"))
            if not paths:  # compiled Python without its sources
                return None
            for path in paths:
                source = path.read_bytes()
                if path.stat().st_ctime_ns > package.IMPORTED_NS - _CLOCK_STEP_NS:
                    return None
                total.update(f"{path.name} {len(source)}\n".encode() + source)
    except OSError:
        return None
    return total.hexdigest()
