"""Extensions: fields that OpenAI does not have, and the names that other servers use for them (behaviour §10).

A field of another server is either an alias of a parameter, or accepted only with the value that describes the
behaviour of this server. Other values are rejected, never ignored (behaviour W25).
"""

from __future__ import annotations

from dataclasses import replace

from onward.api.openai.front_end_parameters import FRONT_END_PARAMETERS
from onward.api.openai.other_names import OWN_PARAMETERS, alias, fixed
from onward.api.parameter import Parameter

_OLLAMA_OPTIONS = {
    "num_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    **{
        name: name
        for name in (
            "frequency_penalty",
            "min_p",
            "presence_penalty",
            "seed",
            "stop",
            "temperature",
            "top_k",
            "top_p",
        )
    },
}


_STRUCTURED_OUTPUTS = (
    alias("json", "json_schema", "vLLM"),
    *(alias(name, name, "vLLM") for name in ("json_object", "regex", "choice", "grammar")),
    *(alias(name, name, "vLLM") for name in ("whitespace_pattern", "disable_any_whitespace")),
    fixed("disable_additional_properties", False, "vLLM", "`false` (the schema says it)"),
    replace(
        fixed("disable_fallback", False, "vLLM", ""),
        only=(False, True),
        help="A field of vLLM. There is one implementation, llguidance, and nothing to fall back to.",
    ),
)
DIALECTS = (
    Parameter(
        name="structured_outputs",
        kind="object",
        origin="extension",
        dialect="vLLM",
        group="output",
        example={"regex": "[a-z]+"},
        inner=_STRUCTURED_OUTPUTS,
        help="vLLM's constraints: one of `json`, `json_object`, `regex`, `choice` and `grammar`.",
    ),
    alias("guided_json", "json_schema", "vLLM"),
    alias("guided_regex", "regex", "vLLM"),
    alias("guided_choice", "choice", "vLLM"),
    alias("guided_grammar", "grammar", "vLLM"),
    alias("guided_whitespace_pattern", "whitespace_pattern", "vLLM"),
    replace(
        fixed("guided_decoding_backend", "auto", "vLLM", ""),
        only=("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer"),
        help="A field of vLLM. Constraints are always those of llguidance.",
    ),
    alias("ebnf", "grammar", "SGLang"),
    alias("no_stop_trim", "include_stop_str_in_output", "SGLang"),
    fixed("return_hidden_states", False, "SGLang", "`false`"),
    fixed("use_beam_search", False, "vLLM", "`false`"),
    replace(
        fixed("spaces_between_special_tokens", True, "vLLM", ""),
        only=(True, False),
        help="A field of vLLM. No space is ever added between special tokens, as in vLLM with fast tokenizers.",
    ),
    alias("typical", "typical_p", "TabbyAPI"),
    alias("mirostat_mode", "mirostat", "TabbyAPI"),
    replace(
        alias("dry_range", "dry_penalty_last_n", "TabbyAPI"),
        unset=0,
        help="TabbyAPI's name for `dry_penalty_last_n`; but 0 means all, as it does there.",
    ),
    alias("penalty_range", "repeat_last_n", "TabbyAPI"),
    alias("tfs_z", "tfs", "llama.cpp"),
    alias("nsigma", "top_n_sigma", "Aphrodite"),
    alias("custom_token_bans", "banned_tokens", "Aphrodite"),
    alias("allowed_tokens", "allowed_token_ids", "TabbyAPI"),
    alias("n_predict", "max_tokens", "llama.cpp"),
    replace(
        alias("n_probs", "logprobs", "llama.cpp"),
        strict_maximum=None,
        unset=0,
        help="llama.cpp's name for `logprobs`, with the same answer; but 0 means none, as it does there.",
    ),
    alias("repeat_penalty", "repetition_penalty", "llama.cpp"),
    fixed("cache_prompt", True, "llama.cpp", "`true` (the prefix cache is always used)"),
    Parameter(
        name="options",
        kind="object",
        origin="extension",
        dialect="Ollama",
        group="other",
        example={"temperature": 0.7, "num_predict": 64},
        inner=tuple(alias(name, target, "Ollama") for name, target in _OLLAMA_OPTIONS.items()),
        help="Ollama's sampling options. Fields of the request itself override them.",
    ),
    Parameter(
        name="keep_alive",
        kind="duration",
        origin="extension",
        dialect="Ollama",
        group="other",
        example="5m",
        help="Ollama's time to keep the model loaded. Any time but 0 is accepted: models stay loaded while the server "
        "runs. 0, a request to unload the model, is rejected.",
    ),
)
EXTENSION_PARAMETERS = (*OWN_PARAMETERS, *DIALECTS, *FRONT_END_PARAMETERS)
