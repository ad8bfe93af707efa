"""Other servers' completion APIs over the same backend: thin faces, each from its own server's sources."""
