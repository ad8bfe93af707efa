"""The table of /v1/completions: OpenAI's fields, the extensions, and other servers' names for both (behaviour §10).

The decoder, the command line, OpenAPI and the documentation are generated from it.

A field of another server is either another name of a parameter, or accepted only with the value that describes this
server; other values are rejected, never ignored (behaviour W25). Front ends such as SillyTavern send every field that
they know, whether it is used or not: of samplers that do not exist here, the values that turn them off are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping

from onward.api.core_parameters import OPENAI_PARAMETERS
from onward.api.extension_parameters import EXTENSION_PARAMETERS, LOGIT_EDITS, SAMPLERS
from onward.api.fields import accepted, only, own, same
from onward.api.parameter import FieldTable, Parameter, Profile

_WEBUI = "text-generation-webui"
_MAX_TOKENS = next(parameter for parameter in OPENAI_PARAMETERS if parameter.name == "max_tokens")
_OFF: tuple[tuple[str, object, str], ...] = (
    ("length_penalty", 1, "vLLM"),
    ("early_stopping", False, "vLLM"),
    ("watermarking", False, "vLLM"),
    ("smoothing_factor", 0, "TabbyAPI"),
    ("skew", 0, "TabbyAPI"),
    ("repetition_decay", 0, "TabbyAPI"),
    ("cfg_scale", 1, "TabbyAPI"),
    ("token_healing", False, "TabbyAPI"),
    ("speculative_ngram", False, "TabbyAPI"),
    ("smoothing_curve", 1, "Aphrodite"),
    ("no_repeat_ngram_size", 0, "Aphrodite"),
    ("min_keep", 0, "llama.cpp"),
    ("guidance_scale", 1, "KoboldCpp"),
    ("rep_pen_slope", 1, "KoboldCpp"),
    ("num_beams", 1, _WEBUI),
    ("penalty_alpha", 0, _WEBUI),
    ("encoder_repetition_penalty", 1, _WEBUI),
    ("max_tokens_second", 0, _WEBUI),
)
_PRIORITIES: dict[str, tuple[str, ...]] = {
    "repetition_penalty": ("penalties",),
    "presence_penalty": ("penalties",),
    "frequency_penalty": ("penalties",),
    "dynamic_temperature": ("temperature",),
    "top_nsigma": ("top_n_sigma",),
    "top_p_top_k": ("top_k", "top_p"),
    **{name: (name,) for name in SAMPLERS},
    **dict.fromkeys(("quadratic_sampling", "quadratic", "adaptive_p", "mirostat"), ()),
    **dict.fromkeys(("encoder_repetition_penalty", "no_repeat_ngram"), ()),
}
"""Names of samplers in text-generation-webui and Aphrodite, with those of `samplers`; (): no step of its own here, or
never on."""


def _order(value: object, others: Mapping[str, object]) -> object:
    """Return the order of `samplers` for a `sampler_priority`: those that it does not list act too, after the others,
    and penalties and DRY before them."""
    assert isinstance(value, tuple)
    listed = [own for name in value for own in _PRIORITIES[name]]
    if others.get("temperature_last"):
        listed = [name for name in listed if name != "temperature"]
    rest = [name for name in SAMPLERS if name != "temperature"]
    return tuple(dict.fromkeys((*LOGIT_EDITS, *listed, *rest, "temperature")))


def _room(value: object, others: Mapping[str, object]) -> object:
    """Return how many tokens of a prompt to keep, so that they and `max_tokens` fit into a context of `value`."""
    max_tokens = others.get("max_tokens", _MAX_TOKENS.default)
    assert isinstance(value, int) and isinstance(max_tokens, int)
    return max(1, value - max_tokens)


def _length(name: str, dialect: str) -> Parameter:
    help = (
        f"{dialect}'s length of the context: of a prompt that does not fit into it together with `max_tokens`, the "
        "last tokens are kept."
    )
    return own(
        name, "integer", dialect, help,
        minimum=1, group="prompt", example=4096, alias_of="truncate_prompt_tokens", converts=_room,
    )  # fmt: skip


def _empty(name: str, dialect: str, *values: object) -> Parameter:
    return accepted(name, values[0], dialect, "an empty value", only=values, default=None)


FRONT_END_PARAMETERS = (
    *(accepted(name, value, dialect, "the value that turns it off") for name, value, dialect in _OFF),
    same("max_new_tokens", "max_tokens", _WEBUI),
    same("max_length", "max_tokens", "TabbyAPI"),
    same("num_predict", "max_tokens", "Ollama"),
    same("min_length", "min_tokens", "TabbyAPI"),
    same("stopping_strings", "stop", _WEBUI),
    same("stop_sequence", "stop", "TabbyAPI"),
    same("rep_pen", "repetition_penalty", "TabbyAPI"),
    same("rep_pen_range", "repeat_last_n", "TabbyAPI"),
    same("repetition_range", "repeat_last_n", "TabbyAPI"),
    same(
        "repetition_penalty_range",
        "repeat_last_n",
        _WEBUI,
        unset=0,
        help="text-generation-webui's name for `repeat_last_n`; but 0 means all, as it does there.",
    ),
    same("add_bos_token", "add_special_tokens", _WEBUI),
    same("temp_exponent", "dynatemp_exponent", "TabbyAPI"),
    same("grammar_string", "grammar", "TabbyAPI"),
    same("regex_pattern", "regex", "TabbyAPI"),
    same(
        "sampler_seed",
        "seed",
        "KoboldCpp",
        unset=-1,
        help="KoboldCpp's name for `seed`; but -1 means none, as it does there.",
    ),
    own(
        "sampler_priority",
        "strings",
        _WEBUI,
        "The order of samplers in text-generation-webui and Aphrodite. Unlike with `samplers`, those that are not "
        "listed act too, after the others; penalties and `dry` are always first, and `temperature` is the last with "
        "`temperature_last`.",
        max_items=64,
        only=tuple(_PRIORITIES),
        group="sampling",
        example=["temperature", "top_k", "top_p"],
        alias_of="samplers",
        converts=_order,
    ),
    _length("truncation_length", _WEBUI),
    _length("max_context_length", "KoboldCpp"),
    _length("num_ctx", "Ollama"),
    accepted("do_sample", True, _WEBUI, "`true` (`temperature: 0` samples nothing)"),
    accepted("trim_stop", True, "KoboldCpp", "`true` (`include_stop_str_in_output` keeps it)"),
    accepted("include_reasoning", True, "SillyTavern", "`true` (reasoning is part of the text)"),
    _empty("banned_strings", "TabbyAPI", [], ""),
    _empty("negative_prompt", "TabbyAPI", ""),
    only(
        "adaptive_target",
        "llama.cpp",
        -1,
        -0.01,
        example=-1,
        why="A field of llama.cpp. Only -1 and -0.01, its and SillyTavern's value for off, are accepted.",
    ),
    own(
        "adaptive_decay",
        "number",
        "llama.cpp",
        "It only concerns `adaptive_target`, which is off.",
        has_effect=False,
        example=0.9,
        minimum=0,
        maximum=1,
    ),
    own(
        "api_type",
        "string",
        "SillyTavern",
        "The kind of server that SillyTavern connects to. It has no effect.",
        has_effect=False,
        example="vllm",
    ),
    own(
        "api_server",
        "string",
        "SillyTavern",
        "The address at which SillyTavern reaches the server. It has no effect.",
        has_effect=False,
        example="http://127.0.0.1:8000",
    ),
)


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


PARAMETERS: tuple[Parameter, ...] = (*OPENAI_PARAMETERS, *EXTENSION_PARAMETERS, *DIALECTS, *FRONT_END_PARAMETERS)
BY_NAME = FieldTable(*PARAMETERS)
TABLES: dict[Profile, FieldTable] = {"strict": BY_NAME.of_profile("strict"), "default": BY_NAME, "lenient": BY_NAME}
"""What a profile knows."""
