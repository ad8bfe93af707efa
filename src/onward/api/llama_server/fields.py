"""The requests of llama.cpp's server, by its tools/server/README.md and server-schema.cpp."""

from __future__ import annotations

from typing import Any

from onward.api.decoder import check_fields
from onward.api.extension_parameters import SAMPLER_NAMES
from onward.api.fields import only, own, same, shared, unused
from onward.api.parameter import FieldTable, Parameter, Profile

NAME = "llama-server"
UNLIMITED = -1

DEFAULT_SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""The order of its samplers, unless a request has one."""
LEFT_OUT = ("infill", "adaptive_p", "tfs_z")
"""Samplers that are left out: the first weighs end tokens differently from this engine, the second is off
without an `adaptive_target`, and the third, which llama.cpp has removed, is part of SillyTavern's default."""

_SAMPLING: tuple[Parameter, ...] = (
    same("temperature", "temperature", NAME, default=0.8),
    same("top_k", "top_k", NAME, default=40),
    same("top_p", "top_p", NAME, default=0.95),
    same("min_p", "min_p", NAME, default=0.05),
    same("repeat_penalty", "repetition_penalty", NAME),
    *shared(NAME, "presence_penalty", "frequency_penalty", "seed", "ignore_eos"),
    own(
        "logit_bias", "token_biases", NAME,
        "Values to add to the logits of tokens: pairs of a token id and a number, or `false` to ban it; or an object.",
        minimum=-100, maximum=100, max_items=1024, example=[[15043, 1.0]],
    ),
    own(
        "samplers", "strings", NAME,
        "The samplers that act, in this order; those that are not listed are off. `penalties` and `dry` can only be "
        "first; `infill`, `adaptive_p` and `tfs_z` are left out. By default: " + ", ".join(DEFAULT_SAMPLERS) + ".",
        only=(*SAMPLER_NAMES, *LEFT_OUT), max_items=32, example=["top_k", "top_p", "temperature"],
    ),
    *shared(NAME, "dynatemp_range", "typical_p", "top_n_sigma", "xtc_probability", "dry_multiplier", "mirostat"),
    same("grammar", "grammar", NAME, help="A grammar in GBNF that the text must match."),
    same("json_schema", "json_schema", NAME),
    only("lora", NAME, [], why="An adapter is a model of its own here (`--lora`): only an empty array is accepted."),
    only("min_keep", NAME, 0, why="Only 0 is accepted."),
    only("post_sampling_probs", NAME, False, why="Probabilities are always those before sampling."),
    *shared(
        NAME, "dynatemp_exponent", "xtc_threshold", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
        "dry_sequence_breakers", "mirostat_tau", "mirostat_eta", "penalize_nl",
    ),
    same(
        "repeat_last_n", "repeat_last_n", NAME, default=64,
        help="How many of the last generated tokens penalties count; those of the prompt never count. -1: all.",
    ),
)  # fmt: skip

_COMMON: tuple[Parameter, ...] = (
    same(
        "model", "model", NAME,
        help="The model, by default the first one. If there is only one model, any name means it, as in llama-server.",
    ),
    own(
        "n_predict", "integer", NAME,
        "Maximum number of tokens to generate; -1, the default: until the context is full. Never more than fit.",
        minimum=UNLIMITED, default=UNLIMITED, example=128,
    ),
    own("max_tokens", "integer", NAME, "Another name of `n_predict`.", minimum=UNLIMITED, alias_of="n_predict"),
    own("n_cmpl", "integer", NAME, "Number of completions of each prompt.", minimum=1, maximum=128, alias_of="n"),
    own("n", "integer", NAME, "Another name of `n_cmpl`.", minimum=1, maximum=128, default=1),
    same("stream", "stream", NAME, help="Send the completion while it is generated, as server-sent events."),
    same("stop", "stop", NAME, max_items=64, lenient_max_items=64),
    own("n_indent", "integer", NAME, "End before a line that is indented by fewer characters.", minimum=0, default=0),
    own(
        "t_max_predict_ms", "integer", NAME,
        "End when this many milliseconds have passed since the first token and there is a line break; 0: never.",
        minimum=-1, default=0,
    ),
    own(
        "n_probs", "integer", NAME,
        "Return the log probability of every token and of this many of the most likely ones. Values above 20 are "
        "lowered to 20.",
        minimum=0, cap=20, default=0,
    ),
    own("return_tokens", "boolean", NAME, "Return token ids. Streams always have them.", default=False),
    own("timings_per_token", "boolean", NAME, "Send `timings` in every event of a stream.", default=False),
    own(
        "response_fields", "strings", NAME,
        "Return only these fields; one of an object is named as `timings/prompt_n`.",
        max_items=256, example=["content", "timings/prompt_n"],
    ),
    *_SAMPLING,
    only("cache_prompt", NAME, True, why="The prefix cache is always used: only `true` is accepted."),
    only("return_progress", NAME, False, why="Only `false` is accepted."),
    only("verbose", NAME, False, why="Only `false` is accepted."),
    unused("id_slot", "integer", NAME, "any row of the batch serves any request."),
    unused("n_keep", "integer", NAME, "a context that is full ends the completion."),
    unused("n_discard", "integer", NAME, "a context that is full ends the completion."),
    unused("n_cache_reuse", "integer", NAME, "shared prefixes are reused from the first token on, nothing is shifted."),
    unused("t_max_prompt_ms", "integer", NAME, "llama-server does not implement it either."),
    unused("sse_ping_interval", "integer", NAME, "`--keep-alive` sets the interval for all streams."),
)  # fmt: skip

_OFF: dict[str, tuple[object, ...]] = {
    "adaptive_target": (-1, -0.01),
    "banned_strings": ([],),
    "guidance_scale": (1,),
    "include_reasoning": (True,),
    "max_tokens_second": (0,),
    "negative_prompt": ("",),
    "rep_pen_slope": (1,),
    "skew": (0,),
    "smoothing_curve": (1,),
    "smoothing_factor": (0,),
    "tfs": (1,),
    "top_a": (0,),
}

_FRONT_ENDS: tuple[Parameter, ...] = (
    own("max_new_tokens", "integer", NAME, "Another name of `n_predict`.", minimum=-1, alias_of="n_predict"),
    own("num_predict", "integer", NAME, "Another name of `n_predict`.", minimum=-1, alias_of="n_predict"),
    *shared(NAME, "min_tokens", "ban_eos_token"),
    same("custom_token_bans", "banned_tokens", NAME),
    same("add_bos_token", "add_special_tokens", NAME),
    same("skip_special_tokens", "skip_special_tokens", NAME),
    same("stopping_strings", "stop", NAME, max_items=64, lenient_max_items=64),
    same("repetition_penalty", "repetition_penalty", NAME),
    same("rep_pen", "repetition_penalty", NAME),
    same("rep_pen_range", "repeat_last_n", NAME),
    same("repetition_penalty_range", "repeat_last_n", NAME),
    same("typical", "typical_p", NAME),
    same("nsigma", "top_n_sigma", NAME),
    same("mirostat_mode", "mirostat", NAME),
    *(only(name, NAME, *values, why="Only a value that turns it off is accepted.") for name, values in _OFF.items()),
    unused("adaptive_decay", "number", NAME, "it only concerns `adaptive_target`."),
    unused("truncation_length", "integer", NAME, "the context is the model's."),
    unused("num_ctx", "integer", NAME, "the context is the model's."),
    unused("api_type", "string", NAME, "the kind of server that SillyTavern connects to."),
    unused("api_server", "string", NAME, "the address at which SillyTavern reaches the server."),
)
"""What front ends such as SillyTavern send to llama-server in addition to its own fields, and what it ignores. Here,
other names of its fields act, and fields that do not exist here are accepted with the values that turn them off."""

COMPLETION = FieldTable.with_whole_floats(
    same("prompt", "prompt", NAME, required=True, help="A string or an array of token ids; or an array of one."),
    *_COMMON,
    *_FRONT_ENDS,
)
INFILL = FieldTable.with_whole_floats(
    own("input_prefix", "string", NAME, "The text before the cursor.", example="def add(a, b):\n", default=""),
    own("input_suffix", "string", NAME, "The text after the cursor.", example="\n", default=""),
    own(
        "input_extra", "files", NAME,
        "Other files, `{filename, text}`. Where the context has no room, the first ones are left out.",
        max_items=1024, example=[{"filename": "a.py", "text": "x = 1\n"}],
    ),
    own("prompt", "string", NAME, "Text at the cursor that the completion continues.", example="    ", default=""),
    *_COMMON,
)  # fmt: skip


def check_llama_request(fields: dict[str, object], rows: FieldTable, profile: Profile) -> dict[str, Any]:
    """Return the checked fields of a request, with the samplers in its own order. Raises InvalidRequest."""
    checked = check_fields(fields, rows, profile)
    samplers = checked.get("samplers", DEFAULT_SAMPLERS)
    checked["samplers"] = tuple(name for name in samplers if name not in LEFT_OUT)
    if checked.get("temperature", 1.0) < 0:
        checked["temperature"] = 0.0
    if checked.get("seed") in (-1, 2**32 - 1):
        checked["seed"] = None
    return checked
