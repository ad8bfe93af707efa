"""Extensions: fields that OpenAI does not have, and the names that other servers use for them (spec/completions §10).

A field of another server is either an alias of a parameter, or accepted only with the value that describes the
behaviour of this server. Other values are rejected, never ignored (spec/wire-rules 25).
"""

from __future__ import annotations

from dataclasses import replace

from onward.protocol.constraint_parameters import CONSTRAINT_PARAMETERS
from onward.protocol.openai_parameters import OPENAI_PARAMETERS
from onward.protocol.parameter import Parameter
from onward.protocol.sampler_parameters import SAMPLER_PARAMETERS
from onward.protocol.token_parameters import TOKEN_PARAMETERS

OWN_EXTENSIONS = (
    Parameter(
        name="top_k",
        kind="integer",
        default=0,
        minimum=-1,
        origin="extension",
        group="sampling",
        example=40,
        help="Sample only from this many of the most likely tokens. 0 and -1 mean no limit.",
    ),
    Parameter(
        name="min_p",
        kind="number",
        default=0,
        minimum=0,
        maximum=1,
        origin="extension",
        group="sampling",
        example=0.05,
        help="Sample only from tokens that are at least this fraction as likely as the most likely token. 0 means no "
        "limit.",
    ),
    Parameter(
        name="repetition_penalty",
        kind="number",
        default=1,
        minimum=0.01,
        maximum=100,
        origin="extension",
        group="sampling",
        example=1.1,
        help="Scale the logits of tokens that have been generated: values above 1 make repetition less likely, values "
        "below 1 more likely; 1 has no effect.",
    ),
    Parameter(
        name="min_tokens",
        kind="integer",
        default=0,
        minimum=0,
        origin="extension",
        group="length",
        example=8,
        help="Do not end a choice before it has this many tokens. At most `max_tokens`.",
    ),
    Parameter(
        name="ignore_eos",
        kind="boolean",
        default=False,
        origin="extension",
        group="length",
        example=True,
        help="Continue after the model's end token, up to `max_tokens`. For benchmarks.",
    ),
    Parameter(
        name="skip_special_tokens",
        kind="boolean",
        default=True,
        origin="extension",
        group="output",
        example=False,
        help="Omit special tokens from the text. Their log probabilities are returned anyway.",
    ),
    Parameter(
        name="include_stop_str_in_output",
        kind="boolean",
        default=False,
        origin="extension",
        group="output",
        example=True,
        help="Include the stop string that ended the completion at the end of the text.",
    ),
    Parameter(
        name="return_tokens_as_token_ids",
        kind="boolean",
        default=False,
        origin="extension",
        group="output",
        example=True,
        help="Name tokens in `logprobs` as `token_id:123` instead of by their text. Only has an effect with "
        "`logprobs`.",
    ),
    Parameter(
        name="max_completion_tokens",
        kind="integer",
        minimum=0,
        origin="extension",
        group="length",
        example=64,
        alias_of="max_tokens",
        overrides=True,
        help="The newer name of `max_tokens`, which it overrides.",
    ),
    Parameter(
        name="add_special_tokens",
        kind="boolean",
        default=True,
        origin="extension",
        group="prompt",
        example=False,
        help="Let the tokenizer add its start token to a text prompt, if the model has one. Prompts of token ids are "
        "never changed.",
    ),
    Parameter(
        name="cache_salt",
        kind="string",
        origin="extension",
        group="prompt",
        example="hq9Tbb1pZz0gWm5xJb1t0w",
        help="Share cached prefixes of the prompt only with requests that have the same secret, so that nobody else "
        "can find out by the time to the first token, or by `cached_tokens`, what was asked. It changes no token.",
    ),
    Parameter(
        name="priority",
        kind="integer",
        default=0,
        origin="extension",
        group="other",
        example=-1,
        help="Of a client's own requests that wait for a place in the batch, those with the lowest number begin first; "
        "equal ones take turns. It does not place a request before those of other clients, and interrupts none.",
    ),
    Parameter(
        name="prediction",
        kind="prediction",
        origin="extension",
        group="prompt",
        example={"type": "content", "content": "def add(a, b):\n    return a + b\n"},
        help="Text that the completion is expected to repeat in large part, such as the old version of a file being "
        'edited: `{"type": "content", "content": "…"}`, as in OpenAI\'s Chat API. Where it is correct, several '
        "tokens are generated per step. It changes no token, only the speed.",
    ),
    Parameter(
        name="$schema",
        kind="link",
        origin="extension",
        group="other",
        example="https://example.com/schemas/CompletionRequest.json",
        help="A link to a JSON Schema of the request, for editors. It has no effect on the completion.",
    ),
)

_BY_NAME = {
    parameter.name: parameter
    for parameter in (
        *OPENAI_PARAMETERS,
        *OWN_EXTENSIONS,
        *TOKEN_PARAMETERS,
        *SAMPLER_PARAMETERS,
        *CONSTRAINT_PARAMETERS,
    )
}


def _alias(name: str, target: str, dialect: str) -> Parameter:
    """Return another server's name of a parameter, with the same kind and range."""
    return replace(
        _BY_NAME[target],
        name=name,
        default=None,
        origin="extension",
        alias_of=target,
        dialect=dialect,
        help=f"{dialect}'s name for `{target}`." if name != target else _BY_NAME[target].help,
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


def _fixed(name: str, value: object, dialect: str, meaning: str) -> Parameter:
    """Return another server's field that only accepts the value which describes the behaviour of this server."""
    return Parameter(
        name=name,
        kind="fixed",
        default=value,
        only=(value,),
        origin="extension",
        dialect=dialect,
        group="other",
        example=value,
        help=f"A field of {dialect}. Only {meaning} is accepted.",
    )


_STRUCTURED_OUTPUTS = (
    _alias("json", "json_schema", "vLLM"),
    *(_alias(name, name, "vLLM") for name in ("json_object", "regex", "choice", "grammar")),
    *(_alias(name, name, "vLLM") for name in ("whitespace_pattern", "disable_any_whitespace")),
    _fixed("disable_additional_properties", False, "vLLM", "`false` (the schema says it)"),
    replace(
        _fixed("disable_fallback", False, "vLLM", ""),
        only=(False, True),
        help="A field of vLLM. There is one implementation, llguidance, and nothing to fall back to.",
    ),
)
_OFF: tuple[tuple[str, object, str], ...] = (
    ("length_penalty", 1, "vLLM"),
    ("early_stopping", False, "vLLM"),
    ("watermarking", False, "vLLM"),
    ("smoothing_factor", 0, "TabbyAPI"),
    ("skew", 0, "TabbyAPI"),
    ("repetition_decay", 0, "TabbyAPI"),
    ("cfg_scale", 1, "TabbyAPI"),
    ("token_healing", False, "TabbyAPI"),
    ("no_repeat_ngram_size", 0, "Aphrodite"),
)
"""What front ends such as SillyTavern send whether it is used or not: the values that turn it off are accepted."""


DIALECTS = (
    *(_fixed(name, value, dialect, "the value that turns it off") for name, value, dialect in _OFF),
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
    _alias("guided_json", "json_schema", "vLLM"),
    _alias("guided_regex", "regex", "vLLM"),
    _alias("guided_choice", "choice", "vLLM"),
    _alias("guided_grammar", "grammar", "vLLM"),
    _alias("guided_whitespace_pattern", "whitespace_pattern", "vLLM"),
    replace(
        _fixed("guided_decoding_backend", "auto", "vLLM", ""),
        only=("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer"),
        help="A field of vLLM. Constraints are always those of llguidance.",
    ),
    _alias("ebnf", "grammar", "SGLang"),
    _alias("no_stop_trim", "include_stop_str_in_output", "SGLang"),
    _fixed("return_hidden_states", False, "SGLang", "`false`"),
    _fixed("use_beam_search", False, "vLLM", "`false`"),
    replace(
        _fixed("spaces_between_special_tokens", True, "vLLM", ""),
        only=(True, False),
        help="A field of vLLM. No space is ever added between special tokens, as in vLLM with fast tokenizers.",
    ),
    _alias("typical", "typical_p", "TabbyAPI"),
    _alias("mirostat_mode", "mirostat", "TabbyAPI"),
    _alias("dry_range", "dry_penalty_last_n", "TabbyAPI"),
    _alias("penalty_range", "repeat_last_n", "TabbyAPI"),
    _alias("tfs_z", "tfs", "llama.cpp"),
    _alias("nsigma", "top_n_sigma", "Aphrodite"),
    _alias("custom_token_bans", "banned_tokens", "Aphrodite"),
    _alias("allowed_tokens", "allowed_token_ids", "TabbyAPI"),
    _alias("n_predict", "max_tokens", "llama.cpp"),
    replace(
        _alias("n_probs", "logprobs", "llama.cpp"),
        strict_maximum=None,
        unset=0,
        help="llama.cpp's name for `logprobs`, with the same answer; but 0 means none, as it does there.",
    ),
    _alias("repeat_penalty", "repetition_penalty", "llama.cpp"),
    _fixed("cache_prompt", True, "llama.cpp", "`true` (the prefix cache is always used)"),
    Parameter(
        name="options",
        kind="object",
        origin="extension",
        dialect="Ollama",
        group="other",
        example={"temperature": 0.7, "num_predict": 64},
        inner=tuple(_alias(name, target, "Ollama") for name, target in _OLLAMA_OPTIONS.items()),
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
EXTENSION_PARAMETERS = (
    *OWN_EXTENSIONS,
    *TOKEN_PARAMETERS,
    *SAMPLER_PARAMETERS,
    *CONSTRAINT_PARAMETERS,
    *DIALECTS,
)
