"""Kinds of tokens in a GGUF file's vocabulary (`tokenizer.ggml.token_type`)."""

from __future__ import annotations

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
