"""All parameters with all kinds of values: valid, null, absent, at the limits, of another type, out of range.

Names, ranges and defaults are copied by hand from behaviour §2 and §10 (those of samplers in `tests.samplers`), not
imported from the parameter table, so that errors in the table are found.
"""

from __future__ import annotations

from typing import Any

from tests import samplers

from .servers import ABSENT, Server
from .table import Area, counts

AREA = Area("All parameters, all kinds of values", "§2")
GENERATION = (
    "There is no recording of this message on /v1/completions after 2024 (§12.1); "
    "we use the message that current clients receive."
)

INTEGERS: dict[str, tuple[int | None, int | None]] = {
    "best_of": (0, 20),
    "logprobs": (0, None),
    "n_probs": (0, None),
    "max_tokens": (0, None),
    "n": (1, 128),
    "seed": (-(2**63), 2**63 - 1),
    "top_k": (-1, None),
    "min_tokens": (0, None),
    "max_completion_tokens": (0, None),
    "n_predict": (0, None),
    "truncate_prompt_tokens": (-1, None),
    "prompt_logprobs": (0, 20),
    "repeat_last_n": (-1, None),
    "penalty_range": (-1, None),
    "dry_allowed_length": (1, 64),
    "dry_penalty_last_n": (-1, None),
    "dry_range": (-1, None),
    "mirostat": (0, 2),
    "mirostat_mode": (0, 2),
    "priority": (-(2**63), 2**63 - 1),
}
NUMBERS: dict[str, tuple[float, float]] = {
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "repeat_penalty": (0.01, 100),
    **{name: (low, high) for name, (low, high, _) in samplers.PARAMETERS.items()},
    "nsigma": (-1, 100),
    "typical": (0, 1),
    "tfs_z": (0, 1),
    "dynatemp_range": (0, 100),
    "dynatemp_exponent": (0.01, 100),
    "dry_multiplier": (0, 1000),
    "dry_base": (1, 1000),
    "mirostat_tau": (0, 100),
    "mirostat_eta": (0, 1),
}
BOOLEANS = (
    "echo",
    "stream",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
    "no_stop_trim",
    "return_tokens_as_token_ids",
    "add_special_tokens",
    "ban_eos_token",
    "return_token_ids",
    "temperature_last",
    "penalize_nl",
    "json_object",
    "disable_any_whitespace",
)
STRINGS = (
    *("model", "suffix", "user", "cache_salt", "$schema"),
    *("regex", "grammar", "whitespace_pattern", "guided_regex", "guided_grammar", "guided_whitespace_pattern", "ebnf"),
)
DEFAULTS: dict[str, Any] = {
    "echo": False,
    "frequency_penalty": 0,
    "max_tokens": 16,
    "n": 1,
    "presence_penalty": 0,
    "stream": False,
    "temperature": 1,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "min_tokens": 0,
    "ignore_eos": False,
    "skip_special_tokens": True,
    "include_stop_str_in_output": False,
    "return_tokens_as_token_ids": False,
    "add_special_tokens": True,
    "ban_eos_token": False,
    "return_token_ids": False,
    **{name: default for name, (_, _, default) in samplers.PARAMETERS.items()},
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "dry_multiplier": 0,
    "mirostat": 0,
    "mirostat_mode": 0,
    "priority": 0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "repeat_last_n": -1,
    "penalize_nl": True,
    "temperature_last": False,
    "json_object": False,
    "disable_any_whitespace": False,
}
"""Defaults of parameters that have one."""
NULLABLE = (
    *(name for name in (*INTEGERS, *NUMBERS, *BOOLEANS, *STRINGS) if name != "model"),
    *("prompt", "logit_bias", "stop", "stream_options", "options", "keep_alive", "prediction"),
    *("return_hidden_states", "use_beam_search", "stop_token_ids", "cache_prompt"),
    *("allowed_token_ids", "allowed_tokens", "banned_tokens", "custom_token_bans", "bad_words"),
    *("dry_sequence_breakers", "samplers"),
    *("response_format", "json_schema", "choice", "guided_json", "guided_choice", "structured_outputs"),
    "guided_decoding_backend",
    "spaces_between_special_tokens",
)
NAMES = {
    float: "a decimal number",
    int: "an integer",
    str: "a string",
    bool: "a boolean",
    list: "an array",
    dict: "an object",
}
SAMPLES: tuple[Any, ...] = ("1", 1, 1.5, True, [1], {"a": 1})
EXTENSION = "behaviour §10"


def wrong_types(name: str, expected: str, fits: tuple[type, ...], **more: Any) -> None:
    """A row for each JSON type that does not fit."""
    for value in SAMPLES:
        if type(value) in fits:
            continue
        got = NAMES[type(value)]
        message = f"Invalid type for '{name}': expected {expected}, but got {got} instead."
        where = f"{name}.type.{type(value).__name__}"
        more_here = dict(more)
        if name in ("prompt", "logprobs") and type(value) is bool:
            more_here["golden"] = (15 if name == "prompt" else 29,)
        AREA.refused(
            where,
            f"{name}: {got} is rejected",
            {name: value},
            message,
            param=name,
            code="invalid_type",
            weak=GENERATION,
            **more_here,
        )


def out_of_range(name: str, noun: str, low: float | None, high: float | None, values: list[Any], **more: Any) -> None:
    for value in values:
        below = low is not None and value < low
        side, sign, bound = ("below minimum", ">=", low) if below else ("above maximum", "<=", high)
        code = f"{noun}_below_min_value" if below else f"{noun}_above_max_value"
        golden = {"temperature": (47,), "top_p": (47,), "presence_penalty": (47,), "frequency_penalty": (47,)}
        golden |= {"n": (52,), "logprobs": (29,)}
        AREA.refused(
            f"{name}.{'below' if below else 'above'}.{value}",
            f"{name}: {value} is rejected",
            {name: value},
            f"Invalid '{name}': {noun} {side} value. Expected a value {sign} {bound}, but got {value} instead.",
            param=name,
            code=code,
            weak=GENERATION,
            golden=golden.get(name, ()),
            **more,
        )


def spec_of(name: str) -> dict[str, Any]:
    own = {"best_of", "logprobs", "max_tokens", "n", "seed", "echo", "stream", "suffix", "user", "model"}
    own |= {"frequency_penalty", "presence_penalty", "temperature", "top_p"}
    return {} if name in own else {"source": EXTENSION}


value: Any
outside: list[float]
for name, (low, high) in INTEGERS.items():
    wrong_types(name, "an integer", (int,), **spec_of(name))
    outside = [
        *([low - 1] if low is not None and name != "seed" else []),
        *([high + 1] if high and high < 999 else []),
    ]
    out_of_range(name, "integer", low, high, outside, **spec_of(name))
    fields: dict[str, Any] = {"max_tokens": 2, name: low}
    if name in ("max_completion_tokens", "n_predict"):
        fields = {name: low}
    AREA.served(f"{name}.least", f"{name}: the smallest value {low} is accepted", fields, **spec_of(name))
    if high is not None:
        fields = {"max_tokens": 1, name: high}
        AREA.served(f"{name}.most", f"{name}: the largest value {high} is accepted", fields, **spec_of(name))
AREA.served("logprobs.20", "logprobs: 20 alternatives are returned", {"logprobs": 20, "max_tokens": 1})
AREA.served(
    "max_tokens.context",
    "max_tokens: as many as the context can hold are accepted",
    {"max_tokens": 2048 - 17, "stop": ["e", " "]},
)
AREA.served("top_k.large", "top_k: more than the vocabulary size means no limit", {"top_k": 10**6}, source=EXTENSION)
out_of_range("seed", "integer", -(2**63), 2**63 - 1, [2**63, -(2**63) - 1])

for name, (lowest, highest) in NUMBERS.items():
    wrong_types(name, "a decimal", (int, float), **spec_of(name))
    outside = [lowest - 0.1 if lowest else -0.1, highest + 0.1]
    if name == "repetition_penalty" or name == "repeat_penalty":
        outside = [0, 100.5]
    out_of_range(name, "decimal", lowest, highest, outside, **spec_of(name))
    for edge, bound in (("least", lowest), ("most", highest)):
        AREA.served(f"{name}.{edge}", f"{name}: {bound} is accepted", {name: bound, "seed": 1}, **spec_of(name))

for name in BOOLEANS:
    wrong_types(name, "a boolean", (bool,), **spec_of(name))
    for value in (True, False):
        if name != "stream":
            fields = {name: value}
            AREA.served(f"{name}.{str(value).lower()}", f"{name}: {value} is accepted", fields, **spec_of(name))

for name in STRINGS:
    wrong_types(name, "a string", (str,), **spec_of(name))
AREA.same(
    "user",
    "user: has no effect on the completion",
    {"user": "u"},
    {},
    golden=(8,),
    source="behaviour §2.14",
)
AREA.same("$schema", "$schema: has no effect on the completion", {"$schema": "https://e.x/s"}, {}, source=EXTENSION)


@AREA.law("cache_salt", '"cache_salt": "a", "a" and "b"', source=EXTENSION)
def salts_divide_the_cache(server: Server) -> None:
    """Only requests with the same cache_salt share prefixes; the completion is the same."""
    answers = [server.ask(prompt="salted " * 9, cache_salt=salt) for salt in ("a", "a", "b")]
    cached = [answer.usage["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached[0] == cached[2] == 0 < cached[1]
    assert answers[0].choices == answers[1].choices == answers[2].choices


AREA.same(
    "n_probs",
    "n_probs: another name of logprobs",
    {"n_probs": 3, "max_tokens": 4},
    {"logprobs": 3, "max_tokens": 4},
    source=EXTENSION,
)
AREA.same("n_probs.0", "n_probs: 0 means no log probabilities", {"n_probs": 0}, {}, source=EXTENSION)
AREA.same("suffix.empty", "suffix: an empty string means none", {"suffix": ""}, {}, weak="Not recorded (§2.12).")

wrong_types("logit_bias", "an object", (dict,))
wrong_types("stop", "one of a string or array of strings", (str, list))
AREA.refused(
    "stop.type.list",
    "stop: an array of something else is rejected",
    {"stop": [1]},
    "Invalid type for 'stop[0]': expected a string, but got an integer instead.",
    param="stop[0]",
    code="invalid_type",
    weak=GENERATION,
)
wrong_types(
    "prompt",
    "one of a string, array of strings, array of integers, or array of integer arrays",
    (str, list),
)
AREA.refused(
    "prompt.mixed",
    "prompt: token ids and strings together are rejected",
    {"prompt": [1, "a"]},
    "Invalid type for 'prompt[1]': expected an integer, but got a string instead.",
    param="prompt[1]",
    code="invalid_type",
    golden=(16,),
    weak=GENERATION,
)
for name, value in (("prompt.object", {"a": 1}), ("prompt.number", 5)):
    AREA.refused(
        name,
        f"prompt: {value} is rejected",
        {"prompt": value},
        "Invalid type for 'prompt': expected one of a string…",
        param="prompt",
        code="invalid_type",
        golden=(15,),
    )
wrong_types("stream_options", "an object", (dict,))
for name in ("include_usage", "include_obfuscation", "continuous_usage_stats", "resumable"):
    AREA.refused(
        f"stream_options.{name}.type",
        f"stream_options.{name}: a string is rejected",
        {"stream": True, "stream_options": {name: "yes"}},
        f"Invalid type for 'stream_options.{name}': expected a boolean, but got a string instead.",
        param=f"stream_options.{name}",
        code="invalid_type",
        weak=GENERATION,
        source="behaviour §2.13",
    )
AREA.refused(
    "stream_options.unknown",
    "stream_options: an unknown field is rejected",
    {"stream": True, "stream_options": {"foo": 1}},
    "Unknown parameter: 'stream_options.foo'.",
    param="stream_options.foo",
    code="unknown_parameter",
    weak="Not recorded on this endpoint; the message is that of OpenAI's newer endpoints.",
    source="behaviour §2.13",
)

for name in NULLABLE:
    AREA.same(
        f"{name}.null",
        f"{name}: null is the same as absent",
        {name: None, "seed": 5, "temperature": 1} if name != "temperature" else {name: None, "seed": 5},
        {name: ABSENT, "seed": 5, "temperature": 1} if name != "temperature" else {name: ABSENT, "seed": 5},
        golden=(7,),
        source="behaviour W10",
    )
for name, value in DEFAULTS.items():
    if name != "stream":
        AREA.same(
            f"{name}.default",
            f"{name}: absent means {value}",
            {"seed": 5, "temperature": ABSENT, name: ABSENT},
            {"seed": 5, "temperature": 1, name: value},
            **spec_of(name),
        )
AREA.served(
    "max_tokens.sixteen",
    "max_tokens: 16 by default",
    {"ignore_eos": True},
    counts(completion_tokens=16),
    golden=(2,),
    source="behaviour §2.3",
)

# --- known fields of other servers: an alias, or accepted only with the value that describes Onward's behaviour
# ----------------

for name, value, words in (
    ("return_hidden_states", True, "does not support true. Only false is supported."),
    ("use_beam_search", True, "does not support true. Only false is supported."),
    ("length_penalty", 2, "does not support 2. Only 1 is supported."),
    ("cache_prompt", False, "does not support false. Only true is supported."),
    ("keep_alive", 0, "does not support 0. Only a time other than zero is supported."),
):
    AREA.refused(
        f"{name}.unsupported",
        f"{name}: a value that this server does not support is rejected, not ignored",
        {name: value},
        f"Unsupported value: '{name}' {words}",
        param=name,
        code="unsupported_value",
        source="behaviour W25",
    )
for name, value in (
    ("return_hidden_states", False),
    ("use_beam_search", False),
    ("length_penalty", 1),
    ("length_penalty", 1.0),
    ("early_stopping", False),
    ("watermarking", False),
    ("smoothing_factor", 0),
    ("skew", 0),
    ("repetition_decay", 0),
    ("cfg_scale", 1),
    ("token_healing", False),
    ("no_repeat_ngram_size", 0),
    ("stop_token_ids", []),
    ("spaces_between_special_tokens", True),
    ("spaces_between_special_tokens", False),
    ("cache_prompt", True),
    ("keep_alive", "5m"),
    ("keep_alive", -1),
):
    AREA.same(
        f"{name}.{value}",
        f"{name}: the value that describes the server's behaviour is accepted",
        {name: value},
        {},
        source="behaviour W25",
    )
wrong_types("keep_alive", "one of a duration string or a number of seconds", (str, int, float), source=EXTENSION)
wrong_types("options", "an object", (dict,), source=EXTENSION)
wrong_types("prediction", "an object", (dict,), source="OpenAI's Chat API, `prediction`")
AREA.same(
    "options.alias",
    "options: Ollama's fields have an effect",
    {"temperature": ABSENT, "options": {"num_predict": 4, "temperature": 0, "stop": ["e"]}},
    {"max_tokens": 4, "stop": "e"},
    source="behaviour §14 (twinny)",
)
AREA.same(
    "options.loses",
    "options: a field of the request wins",
    {"max_tokens": 3, "options": {"num_predict": 9}},
    {"max_tokens": 3},
    source="behaviour §14 (twinny)",
)
AREA.same(
    "max_completion_tokens",
    "max_completion_tokens: wins over max_tokens",
    {"max_completion_tokens": 3, "max_tokens": 9},
    {"max_tokens": 3},
    golden=(77,),
    source=EXTENSION,
    weak="Servers disagree if both are present; here the newer name wins.",
)
AREA.same("n_predict", "n_predict: llama.cpp's max_tokens", {"n_predict": 3}, {"max_tokens": 3}, source=EXTENSION)
AREA.same(
    "repeat_penalty",
    "repeat_penalty: llama.cpp's repetition_penalty",
    {"repeat_penalty": 1.7},
    {"repetition_penalty": 1.7},
    source=EXTENSION,
)
AREA.same(
    "no_stop_trim",
    "no_stop_trim: SGLang's include_stop_str_in_output",
    {"no_stop_trim": True, "stop": "e", "max_tokens": 60},
    {"include_stop_str_in_output": True, "stop": "e", "max_tokens": 60},
    source="behaviour W25",
)

COVERED: frozenset[str] = frozenset(row.id.split(".")[0] for row in AREA.rows)
"""Names of the parameters that have rows here; a test compares them with the parameter table."""
