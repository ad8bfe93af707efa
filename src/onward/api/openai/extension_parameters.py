"""Extensions: fields that OpenAI does not have, and the names that other servers use for them (behaviour §10).

A field of another server is either an alias of a parameter, or accepted only with the value that describes the
behaviour of this server. Other values are rejected, never ignored (behaviour W25).
"""

from __future__ import annotations

from onward.api.fields import OWN_PARAMETERS, accepted, only, same
from onward.api.openai.front_end_parameters import FRONT_END_PARAMETERS
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
    same("json", "json_schema", "vLLM"),
    *(same(name, name, "vLLM", alias_of=name) for name in ("json_object", "regex", "choice", "grammar")),
    *(same(name, name, "vLLM", alias_of=name) for name in ("whitespace_pattern", "disable_any_whitespace")),
    accepted("disable_additional_properties", False, "vLLM", "`false` (the schema says it)"),
    only(
        "disable_fallback",
        "vLLM",
        False,
        True,
        example=False,
        why="A field of vLLM. There is one implementation, llguidance, and nothing to fall back to.",
    ),
)
KEEP_ALIVE = Parameter(
    name="keep_alive",
    kind="duration",
    origin="extension",
    dialect="Ollama",
    group="other",
    example="5m",
    help="Ollama's time to keep the model loaded. Any time but 0 is accepted: models stay loaded while the server "
    "runs. 0, a request to unload the model, is rejected.",
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
    same("guided_json", "json_schema", "vLLM"),
    same("guided_regex", "regex", "vLLM"),
    same("guided_choice", "choice", "vLLM"),
    same("guided_grammar", "grammar", "vLLM"),
    same("guided_whitespace_pattern", "whitespace_pattern", "vLLM"),
    only(
        "guided_decoding_backend",
        "vLLM",
        "auto",
        "guidance",
        "xgrammar",
        "outlines",
        "lm-format-enforcer",
        example="auto",
        why="A field of vLLM. Constraints are always those of llguidance.",
    ),
    same("ebnf", "grammar", "SGLang"),
    same("no_stop_trim", "include_stop_str_in_output", "SGLang"),
    accepted("return_hidden_states", False, "SGLang", "`false`"),
    accepted("use_beam_search", False, "vLLM", "`false`"),
    only(
        "spaces_between_special_tokens",
        "vLLM",
        True,
        False,
        example=True,
        why="A field of vLLM. No space is ever added between special tokens, as in vLLM with fast tokenizers.",
    ),
    same("typical", "typical_p", "TabbyAPI"),
    same("mirostat_mode", "mirostat", "TabbyAPI"),
    same(
        "dry_range",
        "dry_penalty_last_n",
        "TabbyAPI",
        unset=0,
        help="TabbyAPI's name for `dry_penalty_last_n`; but 0 means all, as it does there.",
    ),
    same("penalty_range", "repeat_last_n", "TabbyAPI"),
    same("tfs_z", "tfs", "llama.cpp"),
    same("nsigma", "top_n_sigma", "Aphrodite"),
    same("custom_token_bans", "banned_tokens", "Aphrodite"),
    same("allowed_tokens", "allowed_token_ids", "TabbyAPI"),
    same("n_predict", "max_tokens", "llama.cpp"),
    same(
        "n_probs",
        "logprobs",
        "llama.cpp",
        strict_maximum=None,
        unset=0,
        help="llama.cpp's name for `logprobs`, with the same answer; but 0 means none, as it does there.",
    ),
    same("repeat_penalty", "repetition_penalty", "llama.cpp"),
    accepted("cache_prompt", True, "llama.cpp", "`true` (the prefix cache is always used)"),
    Parameter(
        name="options",
        kind="object",
        origin="extension",
        dialect="Ollama",
        group="other",
        example={"temperature": 0.7, "num_predict": 64},
        inner=tuple(same(name, target, "Ollama", alias_of=target) for name, target in _OLLAMA_OPTIONS.items()),
        help="Ollama's sampling options. Fields of the request itself override them.",
    ),
    KEEP_ALIVE,
)
EXTENSION_PARAMETERS = (*OWN_PARAMETERS, *DIALECTS, *FRONT_END_PARAMETERS)
