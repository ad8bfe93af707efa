"""Saved answers, computed again: reading them, comparing them, and the verdicts."""
