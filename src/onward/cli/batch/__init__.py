"""Runs a file of requests; a line that has a result is not run again."""
