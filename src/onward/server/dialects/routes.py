"""The routes of the dialects that the operator has not turned off."""

from __future__ import annotations

from collections.abc import Callable

from onward.protocol.dialects.names import served_dialects
from onward.server.dialects.llama_server import LlamaServer
from onward.server.dialects.mistral import Mistral
from onward.server.dialects.ollama import Ollama
from onward.server.dialects.services import Services
from onward.server.dialects.tabby import Tabby
from onward.server.dialects.tgi import Tgi
from onward.server.routes import Route

ROUTES: dict[str, Callable[[Services], list[Route]]] = {
    "llama-server": lambda services: LlamaServer(services).routes(),
    "ollama": lambda services: Ollama(services).routes(),
    "mistral": lambda services: Mistral(services).routes(),
    "tabby": lambda services: Tabby(services).routes(),
    "tgi": lambda services: Tgi(services).routes(),
}
"""Routes by the name of the dialect in the setting `dialects`."""


def dialect_routes(services: Services) -> list[Route]:
    """Return the routes of the dialects that the settings name."""
    return [route for name in served_dialects(services.settings.dialects) for route in ROUTES[name](services)]
