"""Model files as they are published: what they state, their tensors, their tokenizers."""
