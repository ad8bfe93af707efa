"""Fields that front ends such as SillyTavern send under the names of other servers: these names act, and values that
mean "off" are accepted."""

from __future__ import annotations

from typing import Any

from .servers import ABSENT
from .table import Area

FRONT_ENDS = Area("Fields that front ends send", "§10")
SOURCE = "SillyTavern, `public/scripts/textgen-settings.js`"
SEEDED: dict[str, Any] = {"seed": 5, "temperature": 1, "prompt": "once upon a time once upon", "ignore_eos": True}

NAMES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "max_new_tokens": ({"max_new_tokens": 3}, {"max_tokens": 3}),
    "max_length": ({"max_length": 3}, {"max_tokens": 3}),
    "num_predict": ({"num_predict": 3}, {"max_tokens": 3}),
    "min_length": ({"min_length": 4, "ignore_eos": ABSENT}, {"min_tokens": 4, "ignore_eos": ABSENT}),
    "stopping_strings": ({"stopping_strings": ["e"], "max_tokens": 60}, {"stop": ["e"], "max_tokens": 60}),
    "stop_sequence": ({"stop_sequence": ["e"], "max_tokens": 60}, {"stop": ["e"], "max_tokens": 60}),
    "rep_pen": ({"rep_pen": 1.7}, {"repetition_penalty": 1.7}),
    "rep_pen_range": ({"rep_pen_range": 2, "rep_pen": 5}, {"repeat_last_n": 2, "repetition_penalty": 5}),
    "repetition_range": ({"repetition_range": 2, "rep_pen": 5}, {"repeat_last_n": 2, "repetition_penalty": 5}),
    "repetition_penalty_range": (
        {"repetition_penalty_range": 2, "rep_pen": 5},
        {"repeat_last_n": 2, "repetition_penalty": 5},
    ),
    "repetition_penalty_range.0": ({"repetition_penalty_range": 0, "rep_pen": 5}, {"repetition_penalty": 5}),
    "add_bos_token": ({"add_bos_token": False}, {"add_special_tokens": False}),
    "temp_exponent": (
        {"temp_exponent": 2, "dynatemp_range": 0.5},
        {"dynatemp_exponent": 2, "dynatemp_range": 0.5},
    ),
    "grammar_string": (
        {"grammar_string": 'root ::= "ab" "c"', "ignore_eos": ABSENT},
        {"grammar": 'root ::= "ab" "c"', "ignore_eos": ABSENT},
    ),
    "regex_pattern": ({"regex_pattern": "[a-c]+", "ignore_eos": ABSENT}, {"regex": "[a-c]+", "ignore_eos": ABSENT}),
    "sampler_seed": ({"sampler_seed": 8, "seed": ABSENT}, {"seed": 8}),
    "sampler_priority": (
        {"sampler_priority": ["top_k", "temperature"], "top_k": 3, "top_p": 0.5, "min_p": 0.1},
        {"samplers": ["top_k", "temperature", "min_p", "top_p"], "top_k": 3, "top_p": 0.5, "min_p": 0.1},
    ),
    **{
        name: ({name: 20, "max_tokens": 8}, {"truncate_prompt_tokens": 12, "max_tokens": 8})
        for name in ("truncation_length", "max_context_length", "num_ctx")
    },
}
OFF: dict[str, tuple[Any, Any]] = {
    "speculative_ngram": (False, True),
    "smoothing_curve": (1, 2),
    "min_keep": (0, 3),
    "guidance_scale": (1, 1.5),
    "rep_pen_slope": (1, 2),
    "num_beams": (1, 4),
    "penalty_alpha": (0, 0.6),
    "encoder_repetition_penalty": (1, 1.2),
    "max_tokens_second": (0, 5),
    "do_sample": (True, False),
    "trim_stop": (True, False),
    "include_reasoning": (True, False),
    "banned_strings": ([], ["x"]),
    "negative_prompt": ("", "x"),
    "adaptive_target": (-0.01, 0.5),
}
"""The value that changes nothing, and one that would."""

for name, (sent, same) in NAMES.items():
    FRONT_ENDS.same(name, f"{name} acts as {next(iter(same))}", {**SEEDED, **sent}, {**SEEDED, **same}, source=SOURCE)
for name, (neutral, other) in OFF.items():
    FRONT_ENDS.same(
        f"{name}.off", f"{name}: the value that changes nothing is accepted", {name: neutral}, {}, source=SOURCE
    )
    FRONT_ENDS.refused(
        f"{name}.on",
        f"{name}: another value is rejected, not ignored",
        {name: other},
        f"Unsupported value: '{name}' does not support…",
        param=name,
        code="unsupported_value",
        source="behaviour W25",
    )
for name, value in (("adaptive_decay", 0.9), ("api_type", "ooba"), ("api_server", "http://127.0.0.1:8000")):
    FRONT_ENDS.same(name, f"{name}: has no effect on the completion", {name: value}, {}, source=SOURCE)

COVERED: frozenset[str] = frozenset(row.id.split(".")[0] for row in FRONT_ENDS.rows)
