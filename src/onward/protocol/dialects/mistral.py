"""Mistral's fill-in-the-middle requests, by FIMCompletionRequest of its Python client (mistralai 3.7.0)."""

from __future__ import annotations

from onward.protocol.dialects.decode import Table, table
from onward.protocol.dialects.rows import own, same, unused

NAME = "mistral"

FIM: Table = table(
    same("model", "model", NAME, required=True, help="A model: an id or alias from the models endpoint."),
    own("prompt", "string", NAME, "The text before the completion.", required=True, example="def add(a, b):\n    "),
    same("suffix", "suffix", NAME),
    same("temperature", "temperature", NAME, default=0.7),
    same("top_p", "top_p", NAME),
    own(
        "max_tokens", "integer", NAME,
        "Maximum number of tokens to generate; by default as many as the context has room for.", minimum=0, example=64,
    ),
    own("max_completion_tokens", "integer", NAME, "Another name of `max_tokens`.", minimum=0, alias_of="max_tokens"),
    same("min_tokens", "min_tokens", NAME),
    same("stream", "stream", NAME, help="Send the completion while it is generated, as server-sent events."),
    same("stop", "stop", NAME, max_items=64, lenient_max_items=64),
    same("random_seed", "seed", NAME),
    same("presence_penalty", "presence_penalty", NAME),
    same("frequency_penalty", "frequency_penalty", NAME),
    unused("metadata", "object", NAME, "nothing is stored of a request."),
    unused("prompt_cache_key", "string", NAME, "the prefix cache is always used, and finds what prompts share."),
)  # fmt: skip
