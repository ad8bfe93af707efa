"""The command line. Each command's module is loaded only when it is asked for."""
