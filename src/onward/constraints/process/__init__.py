"""The disposable process in which grammars are compiled: it may end, or be ended, and nobody else notices."""
