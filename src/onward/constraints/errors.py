"""Why a constraint cannot be used."""

from __future__ import annotations


class GrammarError(Exception):
    """A constraint that cannot be used. The message is a sentence's end for the client: what is wrong, and what to
    do."""
