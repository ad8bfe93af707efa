"""The HTTP server: an ASGI application over a Backend, and the process that serves it."""
