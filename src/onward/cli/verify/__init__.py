"""Saved answers, computed again: what is read, how it is compared, and what can be said."""
