"""Engines on several machines: what a server asks of replicas, and what becomes of one that is lost."""
