"""The requests of Ollama's native API, by its api/types.go and docs/api.md (fb30760, 2026-08)."""

from __future__ import annotations

from onward.protocol.dialects.decode import Table, table
from onward.protocol.dialects.rows import only, own, refused, same, sampler, unused
from onward.protocol.parameter import Parameter

NAME = "ollama"
TEMPLATE = "{{ .Prompt }}"
"""Ollama's template of a model whose prompts are used as they are."""
_AT_START = "it is set when the server starts."
_RUNNER_SWITCHES = (
    "numa", "low_vram", "f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only",
)  # fmt: skip

OPTIONS: tuple[Parameter, ...] = (
    own(
        "num_predict", "integer", NAME,
        "Maximum number of tokens to generate; -1, the default, or -2: until the context is full. Never more than fit.",
        minimum=-2, default=-1, example=64,
    ),
    same("temperature", "temperature", NAME, default=0.8),
    same("top_k", "top_k", NAME, default=40),
    same("top_p", "top_p", NAME, default=0.9),
    same("min_p", "min_p", NAME),
    same("repeat_penalty", "repetition_penalty", NAME),
    same("presence_penalty", "presence_penalty", NAME),
    same("frequency_penalty", "frequency_penalty", NAME),
    same("seed", "seed", NAME),
    same("stop", "stop", NAME, max_items=64, lenient_max_items=64),
    sampler("typical_p", NAME, 1.0, 1),
    sampler("tfs_z", NAME, 1.0, 1),
    same("mirostat", "mirostat", NAME),
    same("mirostat_tau", "mirostat_tau", NAME),
    same("mirostat_eta", "mirostat_eta", NAME),
    unused("repeat_last_n", "integer", NAME, "penalties look at the whole completion."),
    unused("penalize_newline", "boolean", NAME, "Ollama has no effect for it any more."),
    unused("num_keep", "integer", NAME, "a context that is full ends the completion."),
    unused("num_ctx", "integer", NAME, _AT_START),
    unused("num_batch", "integer", NAME, "the engine decides with every step."),
    unused("num_gpu", "integer", NAME, _AT_START),
    unused("main_gpu", "integer", NAME, _AT_START),
    unused("num_thread", "integer", NAME, _AT_START),
    unused("draft_num_predict", "integer", NAME, "the engine decides with every step."),
    *(unused(name, "boolean", NAME, _AT_START) for name in _RUNNER_SWITCHES),
)  # fmt: skip

GENERATE: Table = table(
    same("model", "model", NAME, required=True, help="A model's name; `:latest` may follow it."),
    own("prompt", "string", NAME, "The text to continue. Without one, nothing is generated: the model is loaded."),
    same("suffix", "suffix", NAME),
    same("stream", "stream", NAME, default=True, help="Send the completion while it is generated, a line per step."),
    own("options", "object", NAME, "Ollama's sampling options.", inner=OPTIONS, example={"temperature": 0.7}),
    own("logprobs", "boolean", NAME, "Return the log probability of every token.", default=False),
    own(
        "top_logprobs", "integer", NAME, "With `logprobs`, also those of this many of the most likely tokens.",
        minimum=0, maximum=20, default=0,
    ),
    same("keep_alive", "keep_alive", NAME),
    unused("raw", "boolean", NAME, "there are no prompt templates, so every prompt is raw."),
    only("system", NAME, "", why="There is no prompt template for it: put it into `prompt`."),
    only("template", NAME, "", TEMPLATE, why="There are no prompt templates: put everything into `prompt`."),
    only("context", NAME, [], why="Send the text so far in `prompt`: the prefix cache finds it."),
    only("images", NAME, [], why="Models of this server read text only."),
    only("think", NAME, False, why="A model's reasoning is part of its text."),
    own(
        "format", "json_format", NAME, '"json", or a JSON Schema that the response is valid by.', example="json",
        alias_of="json_schema",
    ),
    only("truncate", NAME, False, why="A prompt that does not fit is an error."),
    only("shift", NAME, False, why="A context that is full ends the completion."),
    only("_debug_render_only", NAME, False, why="There are no prompt templates to render."),
)  # fmt: skip

SHOW: Table = table(
    own("model", "string", NAME, "A model's name.", example="storyteller"),
    own("name", "string", NAME, "The older name of `model`.", alias_of="model"),
    unused("verbose", "boolean", NAME, "all that is known is always shown."),
    refused("system", NAME, "There are no system prompts."),
    refused("template", NAME, "There are no prompt templates."),
    refused("options", NAME, "Models have no options of their own."),
)
