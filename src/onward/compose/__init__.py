"""Dependency wiring: builds a Backend, or only a tokenizer, from Settings."""

from onward.compose.backend import compose, load_tokenizer, spare_process

__all__ = ["compose", "load_tokenizer", "spare_process"]
