"""The API of llama.cpp's server, with the routes that `api.dialects` looks for."""

from onward.api.llama_server.routes import ROUTES as ROUTES
