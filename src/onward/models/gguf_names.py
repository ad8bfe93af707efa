"""Which GGUF file of a repository is meant, as users of llama.cpp and Ollama expect."""

from __future__ import annotations

import re
from collections.abc import Iterable

from onward.checkpoints.paths import is_companion
from onward.errors import ModelNameError

SUFFIX = ".gguf"
PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q5_K_S", "Q4_1", "Q6_K", "Q8_0", "F16", "BF16", "F32")
"""Quantisations, the one to take first (Q4_K_M, as llama.cpp's `-hf` and Ollama do)."""


def choose(files: Iterable[str], wanted: str, repository: str) -> list[str]:
    """Return the files of the model: `wanted` is a file's name, a quantisation, or "" for the usual one.

    Several for a model in parts. Raises ModelNameError.
    """
    models = [name for name in files if is_gguf_name(name) and not is_companion(name)]
    firsts = sorted({_first(name) for name in models})
    if not firsts:
        raise ModelNameError(f"{repository} contains no GGUF file.")
    if is_gguf_name(wanted):
        found = [name for name in firsts if wanted in (name, name.rpartition("/")[2])]
    elif wanted:
        found = [name for name in firsts if _has(name, wanted)]
    else:
        found = [name for each in PREFERRED for name in firsts if _has(name, each)] or firsts
    if not found:
        raise ModelNameError(f"{repository} has no {wanted!r}. It has {', '.join(firsts[:20])}.")
    return _parts(found[0], models)


def is_gguf_name(name: str) -> bool:
    """Return whether a file is a GGUF file by its name."""
    return name.lower().endswith(SUFFIX)


def _has(name: str, quantisation: str) -> bool:
    """Return whether a name contains a quantisation as a word: Q4_K_M does not contain Q4_K."""
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(quantisation)}(?![A-Za-z0-9_])", name, re.IGNORECASE) is not None


def _first(name: str) -> str:
    """Return the name of the first part of a model in parts, else the name."""
    return re.sub(r"-\d{5}-of-(\d{5})\.gguf$", r"-00001-of-\1.gguf", name)


def _parts(first: str, models: list[str]) -> list[str]:
    return sorted(name for name in models if _first(name) == first)
