"""Runtimes, each a package with its entry in the table of model formats; what several of them share."""
