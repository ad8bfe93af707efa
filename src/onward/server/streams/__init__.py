"""Streams that are kept, so that a client whose connection is lost can resume."""
