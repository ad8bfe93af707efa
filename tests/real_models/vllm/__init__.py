"""Real vLLM on a processor: how it is installed, and the model folders that it reads."""
