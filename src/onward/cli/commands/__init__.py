"""One module per command; each defines `command`."""
