"""SillyTavern's requests, with the values of its default preset, as its connection types send them.

From its public/scripts/textgen-settings.js (`createTextGenGenerationData`) and
src/endpoints/backends/text-completions.js of 2026: what a type filters, and what it sends even if it is off.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.served import events, post, toy_app
from tests.server.fakes import in_loop

STOP = ["\nUser:", "\nAda:"]
BREAKERS = ["\n", ":", '"', "*"]
LLAMA_ORDER = [
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "tfs_z",
    "typical_p",
    "xtc",
    "top_p",
    "min_p",
    "temperature",
    "adaptive_p",
]
WEBUI_ORDER = [
    "repetition_penalty", "presence_penalty", "frequency_penalty", "dry", "temperature", "dynamic_temperature",
    "quadratic_sampling", "top_n_sigma", "top_k", "top_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "tfs", "top_a",
    "min_p", "adaptive_p", "mirostat", "xtc", "encoder_repetition_penalty", "no_repeat_ngram",
]  # fmt: skip
COMMON: dict[str, Any] = {
    "prompt": "Ada: ab ab ab\nUser:", "model": "toy", "max_new_tokens": 20, "max_tokens": 20, "temperature": 0.7,
    "top_p": 0.5, "typical_p": 1, "typical": 1, "min_p": 0, "repetition_penalty": 1.2, "frequency_penalty": 0,
    "presence_penalty": 0, "top_k": 40, "skew": 0, "min_tokens": 0, "add_bos_token": True, "smoothing_factor": 0,
    "smoothing_curve": 1, "dry_allowed_length": 2, "dry_multiplier": 0, "dry_base": 1.75,
    "dry_sequence_breakers": json.dumps(BREAKERS), "dry_penalty_last_n": 0, "max_tokens_second": 0,
    "stopping_strings": STOP, "stop": STOP, "truncation_length": 2048, "ban_eos_token": False,
    "skip_special_tokens": True, "include_reasoning": True, "top_a": 0, "tfs": 1, "mirostat_mode": 0,
    "mirostat_tau": 5, "mirostat_eta": 0.1, "custom_token_bans": "", "banned_strings": [],
    "api_server": "http://127.0.0.1:8000", "xtc_threshold": 0.1, "xtc_probability": 0, "nsigma": 0, "top_n_sigma": 0,
    "min_keep": 0, "adaptive_target": -0.01, "adaptive_decay": 0.9,
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "rep_pen": 1.2, "rep_pen_range": 0, "repetition_penalty_range": 0, "guidance_scale": 1, "negative_prompt": "",
    "repeat_penalty": 1.2, "repeat_last_n": 0, "n_predict": 20, "num_predict": 20, "num_ctx": 2048, "mirostat": 0,
    "ignore_eos": False, "rep_pen_slope": 1,
}  # fmt: skip
GENERIC = {
    "model", "prompt", "stream", "temperature", "top_p", "frequency_penalty", "presence_penalty", "stop", "seed",
    "logit_bias", "logprobs", "max_tokens", "n", "best_of",
}  # fmt: skip
"""OPENAI_KEYS in src/constants.js: all that a generic server gets."""
VLLM = GENERIC | {
    "top_k", "min_p", "repetition_penalty", "ignore_eos", "min_tokens", "skip_special_tokens",
    "spaces_between_special_tokens",
}  # fmt: skip
"""Those of VLLM_KEYS that have a value."""


def only(keys: set[str], fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name in keys}


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm": (
        "/v1/completions",
        only(VLLM, {**COMMON, "n": 1, "best_of": 1, "ignore_eos": False, "spaces_between_special_tokens": True}),
    ),
    "generic": ("/v1/completions", only(GENERIC, {**COMMON, **OTHERS})),
    "aphrodite": (
        "/v1/completions",
        {
            **COMMON, "api_type": "aphrodite", "custom_token_bans": [], "n": 1, "temperature_last": True,
            "eta_cutoff": 0, "epsilon_cutoff": 0, "ignore_eos": False, "spaces_between_special_tokens": True,
            "early_stopping": False, "include_stop_str_in_output": False, "no_repeat_ngram_size": 0,
        },
    ),
    "tabby": (
        "/v1/completions",
        {
            **COMMON, **OTHERS, "api_type": "tabby", "n": 1, "repetition_decay": 0, "temperature_last": True,
            "speculative_ngram": False,
        },
    ),
    "ooba": (
        "/v1/completions",
        {
            **COMMON, **OTHERS, "api_type": "ooba", "min_length": 0, "num_beams": 1, "length_penalty": 1,
            "early_stopping": False, "sampler_priority": WEBUI_ORDER, "epsilon_cutoff": 0, "eta_cutoff": 0,
            "encoder_repetition_penalty": 1, "no_repeat_ngram_size": 0, "penalty_alpha": 0, "temperature_last": True,
            "do_sample": True,
        },
    ),
    "llamacpp": (
        "/completion",
        {
            **COMMON, **OTHERS, "api_type": "llamacpp", "n": 1, "samplers": LLAMA_ORDER, "logit_bias": [],
            "grammar": "", "dry_sequence_breakers": BREAKERS,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BODIES)
@in_loop
async def test_a_request_of_each_type_is_served_and_streamed(kind: str) -> None:
    path, fields = BODIES[kind]
    async with toy_app() as app:
        whole = await post(app, path, **fields, seed=5)
        stream = await post(app, path, **fields, seed=5, stream=True)
    assert whole.status == stream.status == 200, whole.body
    if kind == "llamacpp":
        text, parts = whole.json["content"], [event["content"] for event in events(stream)[:-1]]
    else:
        text = whole.json["choices"][0]["text"]
        parts = [each["choices"][0]["text"] for each in sent(stream.body)]
    assert text == "".join(parts) != ""


def sent(body: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@in_loop
async def test_fields_that_are_sent_whether_used_or_not_do_not_change_the_answer() -> None:
    """The penalty is off: `repeat_last_n` 0 means none, as in llama.cpp."""
    plain = {
        "prompt": COMMON["prompt"], "model": "toy", "max_tokens": 20, "temperature": 0.7, "top_p": 0.5, "top_k": 40,
        "stop": STOP, "seed": 5, "temperature_last": True,
    }  # fmt: skip
    async with toy_app() as app:
        expected = (await post(app, "/v1/completions", **plain)).json["choices"]
        for kind in ("tabby", "ooba"):
            answer = await post(app, "/v1/completions", **BODIES[kind][1], seed=5)
            assert answer.json["choices"] == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_beams", 4),
        ("penalty_alpha", 0.6),
        ("guidance_scale", 1.5),
        ("banned_strings", ["x"]),
        ("do_sample", False),
    ],
)
@in_loop
async def test_values_that_would_change_it_are_refused_by_name(name: str, value: object) -> None:
    async with toy_app() as app:
        answer = await post(app, "/v1/completions", **{**BODIES["ooba"][1], name: value})
    assert answer.status == 400 and answer.json["error"]["param"] == name
