"""The names of the dialects, and which of them a setting stands for."""

from __future__ import annotations

DIALECTS = ("llama-server", "ollama", "mistral", "tabby", "tgi")


def served_dialects(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dialects that a setting of `all`, `none` or names stands for. `none` wins."""
    if "none" in names:
        return ()
    return tuple(name for name in DIALECTS if name in names or "all" in names)
