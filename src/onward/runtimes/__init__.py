"""What implements engine.model: real runtimes, each in a room of its own, and the weightless toy."""
