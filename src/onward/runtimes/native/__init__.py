"""Kernels of our own over GGUF files and safetensors folders: the same bits on every machine."""
