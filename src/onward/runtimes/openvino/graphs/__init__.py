"""Decoder graphs made from checkpoints: one builder, and a table of what differs between architectures."""
