"""Types of the Python API's keyword arguments, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Literal, Required, TypedDict

from onward.values import Precision, RuntimeName, WeightForm


class StreamOptions(TypedDict, total=False):
    include_usage: bool
    include_obfuscation: bool
    continuous_usage_stats: bool
    resumable: bool


class PredictionPart(TypedDict):
    type: Literal["text"]
    text: str


class Prediction(TypedDict):
    type: Literal["content"]
    content: str | list[PredictionPart]


class NamedSchema(TypedDict, total=False):
    name: str
    schema: dict[str, Any] | str | bool
    strict: bool | None
    description: str | None


class ResponseFormat(TypedDict, total=False):
    type: Required[Literal["text", "json_object", "json_schema"]]
    schema: dict[str, Any] | str | bool
    json_schema: NamedSchema


class CreateParams(TypedDict, total=False):
    """Parameters of `completions.create`, as `onward.api.openai.parameters` declares them (a test compares)."""

    model: str | None
    prompt: str | list[str] | list[int] | list[list[int]] | None
    best_of: int | None
    echo: bool | None
    frequency_penalty: float | None
    logit_bias: dict[str, float] | None
    logprobs: int | None
    max_tokens: int | None
    n: int | None
    presence_penalty: float | None
    seed: int | None
    stop: str | list[str] | None
    stream_options: StreamOptions | None
    suffix: str | None
    temperature: float | None
    top_p: float | None
    user: str | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    min_tokens: int | None
    ignore_eos: bool | None
    skip_special_tokens: bool | None
    include_stop_str_in_output: bool | None
    return_tokens_as_token_ids: bool | None
    max_completion_tokens: int | None
    add_special_tokens: bool | None
    prediction: Prediction | None
    stop_token_ids: list[int] | None
    allowed_token_ids: list[int] | None
    banned_tokens: list[int] | None
    bad_words: list[str] | None
    ban_eos_token: bool | None
    truncate_prompt_tokens: int | None
    prompt_logprobs: int | None
    return_token_ids: bool | None
    top_n_sigma: float | None
    typical_p: float | None
    tfs: float | None
    top_a: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: list[str] | None
    repeat_last_n: int | None
    penalize_nl: bool | None
    samplers: list[str] | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    cache_salt: str | None
    priority: int | None
    temperature_last: bool | None
    response_format: ResponseFormat | None
    json_schema: dict[str, Any] | str | bool | None
    json_object: bool | None
    regex: str | None
    choice: list[str] | None
    grammar: str | None
    whitespace_pattern: str | None
    disable_any_whitespace: bool | None


class ModelOptions(TypedDict, total=False):
    """Settings of the engine. Those left out come from `ONWARD_*` variables, `onward.toml` and the defaults."""

    context_length: int
    draft: str | Sequence[str]
    kv_memory: int | str | None
    lora: Sequence[str]
    max_answer_logprobs: int
    max_parallel: int
    max_prompt_tokens: int
    max_rows: int
    max_wait: float
    max_waiting: int
    max_waiting_memory: int | str
    offline: bool
    runtime: RuntimeName
    precision: Precision
    prefix_cache: bool
    prefix_cache_dir: str | PathLike[str] | None
    prefix_cache_disk: int | str
    speculation: Literal["auto", "off"]
    threads: int
    weights: WeightForm
