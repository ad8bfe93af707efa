"""Builds the JSON body of a request from arguments, files and standard input."""
