"""Requests of other servers' completion APIs: a table of parameters for each, as in `protocol.parameters`."""
