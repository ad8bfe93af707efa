"""The APIs of other servers that are served beside OpenAI's, by the names that the setting `dialects` has for them."""

from __future__ import annotations

from onward.api import mistral, ollama, tabby, tgi
from onward.api.llama_server import routes as llama_server
from onward.api.routes import Route

DIALECTS: dict[str, tuple[Route, ...]] = {
    "llama-server": llama_server.ROUTES,
    "ollama": ollama.ROUTES,
    "mistral": mistral.ROUTES,
    "tabby": tabby.ROUTES,
    "tgi": tgi.ROUTES,
}
"""The routes of each. An API is one module, or a folder, and a line here."""


def served_dialects(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the dialects that a setting of `all`, `none` or names stands for. `none` wins."""
    if "none" in names:
        return ()
    return tuple(name for name in DIALECTS if name in names or "all" in names)
