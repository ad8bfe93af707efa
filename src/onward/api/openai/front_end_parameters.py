"""What text-generation-webui, TabbyAPI and KoboldCpp call things, as front ends such as SillyTavern send it.

These send every field that they know, whether it is used or not. Other names of a parameter act; of samplers that do
not exist here, the values that turn them off are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from onward.api.openai.openai_parameters import OPENAI_PARAMETERS
from onward.api.openai.other_names import alias, fixed
from onward.api.openai.sampler_parameters import LOGIT_EDITS, SAMPLER_NAMES
from onward.api.parameter import Kind, Parameter

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
    **{name: (name,) for name in SAMPLER_NAMES if name != "typ_p"},
    **dict.fromkeys(("quadratic_sampling", "quadratic", "adaptive_p", "mirostat"), ()),
    **dict.fromkeys(("encoder_repetition_penalty", "no_repeat_ngram"), ()),
}
"""Names of samplers in text-generation-webui and Aphrodite, with those of `samplers`; (): no step of its own here, or
never on."""


def _order(value: object, others: Mapping[str, object]) -> object:
    """Return the order of `samplers` for a `sampler_priority`: those that it does not list act too, behind the others,
    and penalties and DRY before them."""
    assert isinstance(value, tuple)
    listed = [own for name in value for own in _PRIORITIES[name]]
    if others.get("temperature_last"):
        listed = [name for name in listed if name != "temperature"]
    rest = [name for name in SAMPLER_NAMES if name not in ("typ_p", "temperature")]
    return tuple(dict.fromkeys((*LOGIT_EDITS, *listed, *rest, "temperature")))


def _room(value: object, others: Mapping[str, object]) -> object:
    """Return how many tokens of a prompt to keep, so that it and `max_tokens` have as many as `value` together."""
    max_tokens = others.get("max_tokens", _MAX_TOKENS.default)
    assert isinstance(value, int) and isinstance(max_tokens, int)
    return max(1, value - max_tokens)


def _length(name: str, dialect: str) -> Parameter:
    return Parameter(
        name=name,
        kind="integer",
        minimum=1,
        origin="extension",
        dialect=dialect,
        group="prompt",
        example=4096,
        alias_of="truncate_prompt_tokens",
        converts=_room,
        help=f"{dialect}'s length of the context: of a prompt that has no room in it beside `max_tokens`, the last "
        "tokens are kept.",
    )


def _empty(name: str, dialect: str, *values: object) -> Parameter:
    return replace(fixed(name, values[0], dialect, "an empty value"), only=values, default=None)


def _unused(name: str, kind: Kind, dialect: str, example: object, help: str) -> Parameter:
    return Parameter(
        name=name,
        kind=kind,
        origin="extension",
        dialect=dialect,
        group="other",
        example=example,
        has_effect=False,
        help=help,
    )


FRONT_END_PARAMETERS = (
    *(fixed(name, value, dialect, "the value that turns it off") for name, value, dialect in _OFF),
    alias("max_new_tokens", "max_tokens", _WEBUI),
    alias("max_length", "max_tokens", "TabbyAPI"),
    alias("num_predict", "max_tokens", "Ollama"),
    alias("min_length", "min_tokens", "TabbyAPI"),
    alias("stopping_strings", "stop", _WEBUI),
    alias("stop_sequence", "stop", "TabbyAPI"),
    alias("rep_pen", "repetition_penalty", "TabbyAPI"),
    alias("rep_pen_range", "repeat_last_n", "TabbyAPI"),
    alias("repetition_range", "repeat_last_n", "TabbyAPI"),
    replace(
        alias("repetition_penalty_range", "repeat_last_n", _WEBUI),
        unset=0,
        help="text-generation-webui's name for `repeat_last_n`; but 0 means all, as it does there.",
    ),
    alias("add_bos_token", "add_special_tokens", _WEBUI),
    alias("temp_exponent", "dynatemp_exponent", "TabbyAPI"),
    alias("grammar_string", "grammar", "TabbyAPI"),
    alias("regex_pattern", "regex", "TabbyAPI"),
    replace(
        alias("sampler_seed", "seed", "KoboldCpp"),
        unset=-1,
        help="KoboldCpp's name for `seed`; but -1 means none, as it does there.",
    ),
    Parameter(
        name="sampler_priority",
        kind="strings",
        max_items=64,
        only=tuple(_PRIORITIES),
        origin="extension",
        dialect=_WEBUI,
        group="sampling",
        example=["temperature", "top_k", "top_p"],
        alias_of="samplers",
        converts=_order,
        help="The order of samplers in text-generation-webui and Aphrodite. Unlike with `samplers`, those that are not "
        "listed act too, behind the others; penalties and `dry` are always first, and `temperature` is the last with "
        "`temperature_last`.",
    ),
    _length("truncation_length", _WEBUI),
    _length("max_context_length", "KoboldCpp"),
    _length("num_ctx", "Ollama"),
    fixed("do_sample", True, _WEBUI, "`true` (`temperature: 0` samples nothing)"),
    fixed("trim_stop", True, "KoboldCpp", "`true` (`include_stop_str_in_output` keeps it)"),
    fixed("include_reasoning", True, "SillyTavern", "`true` (reasoning is part of the text)"),
    _empty("banned_strings", "TabbyAPI", [], ""),
    _empty("negative_prompt", "TabbyAPI", ""),
    replace(
        fixed("adaptive_target", -1, "llama.cpp", ""),
        only=(-1, -0.01),
        help="A field of llama.cpp. Only -1 and -0.01, its and SillyTavern's value for off, are accepted.",
    ),
    replace(
        _unused("adaptive_decay", "number", "llama.cpp", 0.9, "It only concerns `adaptive_target`, which is off."),
        minimum=0,
        maximum=1,
    ),
    _unused("api_type", "string", "SillyTavern", "vllm", "What SillyTavern takes the server for. It has no effect."),
    _unused(
        "api_server",
        "string",
        "SillyTavern",
        "http://127.0.0.1:8000",
        "The address that SillyTavern has for the server. It has no effect.",
    ),
)
