"""OpenAI's Completions API."""
