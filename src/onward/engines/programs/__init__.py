"""Engines that are other projects' programs (llama-server, vLLM, SGLang), which Onward starts, watches and ends."""
