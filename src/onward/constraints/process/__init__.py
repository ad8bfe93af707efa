"""The disposable process in which grammars are compiled: it may crash, or be killed, without affecting any other."""
