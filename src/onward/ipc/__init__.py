"""Processes that Onward starts for itself: how they are started, what passes between them, and how they ended."""
