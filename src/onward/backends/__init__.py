"""Backends: implementations that answer a CompletionRequest."""
