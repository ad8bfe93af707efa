"""Engines on other servers, used by token ids: llama-server behind the interface of an engine client."""
