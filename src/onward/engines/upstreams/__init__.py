"""Servers of others as engines, by token ids: what is asked of them, and what becomes of their faults."""
