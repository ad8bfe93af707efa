"""From token bytes to text deltas: UTF-8 decoding, stop strings and offsets, incrementally and without I/O."""
