"""Engines that are programs of others (llama-server, vLLM, SGLang), which Onward starts, watches and ends."""
