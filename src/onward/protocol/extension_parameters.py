"""Fields beyond OpenAI's that act here, and other servers' spellings of them (spec/completions §10).

A known field of another server is an alias of a parameter here, or passes only with the value that describes
what happens anyway; any other value is refused, never ignored (spec/wire-rules 25).
"""

from __future__ import annotations

from dataclasses import replace

from onward.protocol.openai_parameters import OPENAI_PARAMETERS
from onward.protocol.parameter import Parameter

OWN_EXTENSIONS = (
    Parameter(
        name="top_k",
        kind="integer",
        default=0,
        minimum=-1,
        origin="extension",
        group="sampling",
        example=40,
        help="Draw only from this many of the most likely tokens. 0 and -1 turn it off.",
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
        help="Draw only from tokens at least this fraction as likely as the most likely one. 0 turns it off.",
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
        help="Make tokens that were already generated less likely by scaling their logits: above 1 "
        "discourages repetition, below 1 invites it, 1 turns it off.",
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
        help="Go on when the model would end the text, up to `max_tokens`; for benchmarks.",
    ),
    Parameter(
        name="skip_special_tokens",
        kind="boolean",
        default=True,
        origin="extension",
        group="output",
        example=False,
        help="Leave special tokens out of the text. Their log probabilities are reported all the same.",
    ),
    Parameter(
        name="include_stop_str_in_output",
        kind="boolean",
        default=False,
        origin="extension",
        group="output",
        example=True,
        help="Keep the stop string that ended the completion at the end of its text.",
    ),
    Parameter(
        name="return_tokens_as_token_ids",
        kind="boolean",
        default=False,
        origin="extension",
        group="output",
        example=True,
        help="In `logprobs`, spell each token as `token_id:123` instead of its text. Needs `logprobs` to show.",
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
        help="The newer name of `max_tokens`. It wins when both are given.",
    ),
    Parameter(
        name="add_special_tokens",
        kind="boolean",
        default=True,
        origin="extension",
        group="prompt",
        example=False,
        help="Let the tokenizer put its start token before a text prompt, where the model has one. "
        "Token id prompts are always used as they are.",
    ),
    Parameter(
        name="prediction",
        kind="prediction",
        origin="extension",
        group="prompt",
        example={"type": "content", "content": "def add(a, b):\n    return a + b\n"},
        help="Text that the completion will largely repeat, such as the old version of a file being edited: "
        '`{"type": "content", "content": "…"}`, as in OpenAI\'s Chat API. Where it is right, several tokens come '
        "at a time. It changes no token, only the speed.",
    ),
    Parameter(
        name="$schema",
        kind="link",
        origin="extension",
        group="other",
        example="https://example.com/schemas/CompletionRequest.json",
        help="A link to a JSON Schema of this body, for editors. It has no effect on the completion.",
    ),
)

_BY_NAME = {parameter.name: parameter for parameter in (*OPENAI_PARAMETERS, *OWN_EXTENSIONS)}


def _alias(name: str, target: str, dialect: str) -> Parameter:
    """Another server's spelling of a parameter: same kind and range."""
    return replace(
        _BY_NAME[target],
        name=name,
        default=None,
        origin="extension",
        alias_of=target,
        dialect=dialect,
        help=f"{dialect}'s name of `{target}`." if name != target else _BY_NAME[target].help,
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
    """Another server's field of which one value describes what happens here anyway."""
    return Parameter(
        name=name,
        kind="fixed",
        default=value,
        only=(value,),
        origin="extension",
        dialect=dialect,
        group="other",
        example=value,
        help=f"{dialect}'s field, accepted as {meaning} only: no other value is supported.",
    )


DIALECTS = (
    _alias("no_stop_trim", "include_stop_str_in_output", "SGLang"),
    _fixed("return_hidden_states", False, "SGLang", "`false`"),
    _fixed("use_beam_search", False, "vLLM", "`false`"),
    _fixed("stop_token_ids", [], "vLLM", "an empty array"),
    _alias("n_predict", "max_tokens", "llama.cpp"),
    _alias("repeat_penalty", "repetition_penalty", "llama.cpp"),
    _fixed("cache_prompt", True, "llama.cpp", "`true` (prefixes are always shared)"),
    Parameter(
        name="options",
        kind="object",
        origin="extension",
        dialect="Ollama",
        group="other",
        example={"temperature": 0.7, "num_predict": 64},
        inner=tuple(_alias(name, target, "Ollama") for name, target in _OLLAMA_OPTIONS.items()),
        help="Ollama's sampling options. A field of the request itself wins over its twin in here.",
    ),
    Parameter(
        name="keep_alive",
        kind="duration",
        origin="extension",
        dialect="Ollama",
        group="other",
        example="5m",
        help="Ollama's wish to keep the model loaded this long. It always holds: models stay loaded "
        "while the server runs; 0, which asks to unload, is refused.",
    ),
)
EXTENSION_PARAMETERS = (*OWN_EXTENSIONS, *DIALECTS)
