"""Runs a file of requests; lines that have a result keep it from run to run."""
