"""Real SGLang on a processor: how it is installed."""
