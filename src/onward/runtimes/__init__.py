"""What computes models: runtimes, each a package with its entry in a table, and what several of them share."""
