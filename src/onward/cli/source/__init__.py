"""Where completions come from: a server over HTTP, or a model in this process, behind one interface."""
