"""Families of architectures, a module each: what their files state, and how decoders follow from it."""
