"""Accepted requests, and their values in CompletionRequest."""

from __future__ import annotations

import json
import secrets

import pytest

from onward.api.extension_parameters import SAMPLERS
from onward.api.openai.decode import check_request
from onward.completions import request as request_module
from onward.completions.request import CompletionRequest
from tests.api.openai.decoding import decode_request
from tests.tables import each_row

INT64_MAX = 2**63 - 1
PREDICTION = {"type": "content", "content": "a b"}


def decode(**fields: object) -> CompletionRequest:
    return decode_request(json.dumps({"model": "m"} | fields).encode())


ACCEPTED = [
    # (field, value on the wire, value in the request)
    ("model", "gpt-3.5-turbo-instruct", "gpt-3.5-turbo-instruct"),
    ("prompt", "Hi", "Hi"),
    ("prompt", "", ""),
    ("prompt", [], None),
    ("prompt", [""], [""]),
    ("prompt", ["a", "b"], ["a", "b"]),
    ("prompt", [1, 2], [1, 2]),
    ("prompt", [-1], [-1]),  # refused where the vocabulary is known
    ("prompt", [INT64_MAX], [INT64_MAX]),
    ("prompt", [[1], [2, 3]], [[1], [2, 3]]),
    ("prompt", "naïve 🙂\u0000", "naïve 🙂\u0000"),
    ("best_of", 0, None),
    ("best_of", 1, 1),
    ("best_of", 20, 20),
    ("echo", True, True),
    ("echo", False, False),
    ("frequency_penalty", -2, -2.0),
    ("frequency_penalty", 2.0, 2.0),
    ("frequency_penalty", 1e-3, 0.001),
    ("presence_penalty", -2.0, -2.0),
    ("presence_penalty", 2, 2.0),
    ("logit_bias", {}, {}),
    ("logit_bias", {"50256": -100}, {50256: -100.0}),
    ("logit_bias", {"0": 0.5, "1": 100}, {0: 0.5, 1: 100.0}),
    ("logit_bias", {str(INT64_MAX): 1}, {INT64_MAX: 1.0}),
    ("logit_bias", {str(i): 1 for i in range(1024)}, dict.fromkeys(range(1024), 1.0)),
    ("logprobs", 0, 0),
    ("logprobs", 20, 20),
    ("logprobs", 21, 20),
    ("logprobs", INT64_MAX, 20),
    ("max_tokens", 0, 0),
    ("max_tokens", INT64_MAX, INT64_MAX),
    ("n", 1, 1),
    ("n", 128, 128),
    ("seed", 0, 0),
    ("seed", -1, -1),
    ("seed", -(2**63), -(2**63)),
    ("seed", INT64_MAX, INT64_MAX),
    ("stop", "\n", ("\n",)),
    ("stop", [], ()),
    ("stop", ["a"], ("a",)),
    ("stop", ["a", "b", "c", "d"], ("a", "b", "c", "d")),
    ("stream", True, True),
    ("suffix", "end", "end"),
    ("suffix", "", None),
    ("temperature", 0, 0.0),
    ("temperature", 2, 2.0),
    ("temperature", 0.7, 0.7),
    ("top_p", 0, 0.0),
    ("top_p", 1, 1.0),
    ("user", "u", "u"),
    ("top_k", -1, 0),
    ("top_k", 0, 0),
    ("top_k", 1, 1),
    ("top_k", 10**9, 10**9),
    ("min_p", 0, 0.0),
    ("min_p", 1, 1.0),
    ("repetition_penalty", 0.01, 0.01),
    ("repetition_penalty", 1.3, 1.3),
    ("min_tokens", 0, 0),
    ("min_tokens", 16, 16),
    ("ignore_eos", True, True),
    ("skip_special_tokens", False, False),
    ("include_stop_str_in_output", True, True),
    ("return_tokens_as_token_ids", True, True),
    ("add_special_tokens", False, False),
    ("prediction", {"type": "content", "content": "a b\n"}, "a b\n"),
    ("prediction", {"content": "naïve 🙂\u0000", "type": "content"}, "naïve 🙂\u0000"),
    ("prediction", {"type": "content", "content": ""}, None),
    ("prediction", {"type": "content", "content": [{"type": "text", "text": "a"}]}, "a"),
    ("prediction", {"type": "content", "content": [{"type": "text", "text": x} for x in ("a ", "", "b")]}, "a b"),
    ("prediction", {"type": "content", "content": [{"type": "text", "text": ""}]}, None),
]


@each_row(("field", "sent", "held"), ACCEPTED, ids=str)
def test_a_valid_value_is_in_the_request(field: str, sent: object, held: object) -> None:
    request = decode(**{field: sent})
    assert getattr(request, field) == held
    assert type(getattr(request, field)) is type(held)


@each_row(("field", "sent", "held"), ACCEPTED, ids=str)
def test_a_value_changes_no_other_field(field: str, sent: object, held: object) -> None:
    expected = {"model": "m"} | {field: held}
    assert decode(**{field: sent}) == CompletionRequest(**expected)  # type: ignore[arg-type]


def test_a_request_with_only_a_model_has_all_defaults() -> None:
    assert decode() == CompletionRequest(model="m")
    assert decode().max_tokens == 16


def test_stream_options_are_fields_of_the_request() -> None:
    request = decode(
        stream=True,
        stream_options={
            "include_usage": True,
            "include_obfuscation": True,
            "continuous_usage_stats": True,
        },
    )
    assert request.include_usage and request.include_obfuscation and request.continuous_usage_stats


@pytest.mark.parametrize("options", [None, {}, {"include_usage": None}, {"include_usage": False}], ids=str)
def test_empty_stream_options_keep_the_defaults(options: object) -> None:
    assert decode(stream=True, stream_options=options) == CompletionRequest(model="m", stream=True)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_completion_tokens": 3}, 3),
        ({"max_completion_tokens": 3, "max_tokens": 9}, 3),
        ({"max_completion_tokens": 0, "max_tokens": 9}, 0),
        ({"max_completion_tokens": None, "max_tokens": 9}, 9),
        ({"n_predict": 3}, 3),
        ({"n_predict": 3, "max_tokens": 9}, 9),
        ({"options": {"num_predict": 3}}, 3),
        ({"options": {"num_predict": 3}, "max_tokens": 9}, 9),
        ({"options": {"num_predict": 3}, "max_completion_tokens": 9}, 9),
        ({"max_completion_tokens": 9, "options": {"num_predict": 3}}, 9),
    ],
    ids=str,
)
def test_the_names_of_the_token_limit_have_a_precedence(fields: dict[str, object], limit: int) -> None:
    assert decode(**fields).max_tokens == limit


@each_row(
    ("sent", "held"),
    [
        ({"no_stop_trim": True}, {"include_stop_str_in_output": True}),
        ({"no_stop_trim": False, "include_stop_str_in_output": True}, {"include_stop_str_in_output": True}),
        ({"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"return_hidden_states": False}, {}),
        ({"use_beam_search": False}, {}),
        ({"stop_token_ids": []}, {}),
        ({"stop_token_ids": [5, 5]}, {"stop_token_ids": (5, 5)}),
        ({"priority": 0, "spaces_between_special_tokens": False}, {}),
        ({"custom_token_bans": [1], "allowed_tokens": [2]}, {"banned_tokens": (1,), "allowed_token_ids": (2,)}),
        ({"bad_words": ["a", "b c"]}, {"bad_words": ("a", "b c")}),
        ({"banned_tokens": "1, 2,", "allowed_tokens": ""}, {"banned_tokens": (1, 2)}),
        ({"dry_sequence_breakers": '["a", "\\n"]'}, {"dry_sequence_breakers": ("a", "\n")}),
        ({"dry_sequence_breakers": '"a", ":"'}, {"dry_sequence_breakers": ("a", ":")}),
        ({"dry_range": 0}, {}),
        ({"dry_range": 9}, {"dry_penalty_last_n": 9}),
        ({"sampler_seed": -1}, {}),
        ({"sampler_seed": 7}, {"seed": 7}),
        ({"repetition_penalty_range": 0}, {}),
        ({"rep_pen_range": 0, "rep_pen": 2}, {"repeat_last_n": 0, "repetition_penalty": 2.0}),
        ({"max_length": 9, "min_length": 2}, {"max_tokens": 9, "min_tokens": 2}),
        ({"add_bos_token": False, "stop_sequence": "x"}, {"add_special_tokens": False, "stop": ("x",)}),
        ({"grammar_string": ""}, {}),
        ({"regex_pattern": "a+"}, {"regex": "a+"}),
        ({"truncation_length": 100}, {"truncate_prompt_tokens": 84}),
        ({"truncation_length": 100, "max_new_tokens": 30}, {"truncate_prompt_tokens": 70, "max_tokens": 30}),
        ({"num_ctx": 10}, {"truncate_prompt_tokens": 1}),
        ({"num_ctx": 50, "truncate_prompt_tokens": 4}, {"truncate_prompt_tokens": 4}),
        ({"sampler_priority": ["top_p_top_k", "dry"], "samplers": ["top_k"]}, {"samplers": ("top_k",)}),
        ({"cache_prompt": True}, {}),
        ({"keep_alive": "5m"}, {}),
        ({"keep_alive": "1h30m"}, {}),
        ({"keep_alive": -1}, {}),
        ({"keep_alive": 300}, {}),
        ({"$schema": "https://example.com/s.json"}, {}),
        ({"options": {}}, {}),
        ({"options": {"temperature": 0.2, "top_k": -1}}, {"temperature": 0.2, "top_k": 0}),
        ({"options": {"temperature": 0.2}, "temperature": 0.3}, {"temperature": 0.3}),
        ({"options": {"stop": ["x"], "seed": 1}}, {"stop": ("x",), "seed": 1}),
    ],
    ids=str,
)
def test_a_dialect_sets_the_field_that_it_is_an_alias_of(sent: dict[str, object], held: dict[str, object]) -> None:
    assert decode(**sent) == CompletionRequest(model="m", **held)  # type: ignore[arg-type]


@pytest.mark.parametrize("last", [False, True])
def test_with_the_sampler_order_of_text_generation_webui_all_samplers_act(last: bool) -> None:
    listed = ["temperature", "quadratic_sampling", "top_k", "repetition_penalty", "min_p"]
    samplers = decode(sampler_priority=listed, temperature_last=last).samplers
    assert samplers is not None and sorted(samplers) == sorted(SAMPLERS)
    first = ["penalties", "dry", "top_k", "min_p"] if last else ["penalties", "dry", "temperature", "top_k", "min_p"]
    assert list(samplers[: len(first)]) == first and (samplers[-1] == "temperature") == last


@each_row(
    "fields",
    [
        {"n": 2, "best_of": 2},
        {"n": 2, "best_of": 5},
        {"n": 3, "best_of": 0},
        {"n": 3, "stream": True},
        {"n": 2, "best_of": 2, "stream": True},
        {"best_of": 1, "stream": True},
        {"best_of": 0, "stream": True},
        {"echo": True, "logprobs": 1},
        {"echo": True, "logprobs": 1, "max_tokens": 0},
        {"temperature": 0, "n": 3},
        {"min_tokens": 4, "max_tokens": 4},
        {"n": 2, "best_of": 4, "echo": True, "logprobs": 2, "suffix": "x", "prediction": PREDICTION},
        {"prompt": ["a", "b"], "stream": True, "frequency_penalty": 1, "stop": "x", "prediction": PREDICTION},
        {"min_tokens": 4, "max_completion_tokens": 5, "max_tokens": 1},
    ],
    ids=str,
)
def test_compatible_fields_are_accepted(fields: dict[str, object]) -> None:
    assert decode(**fields).model == "m"


def test_the_last_of_repeated_keys_wins() -> None:
    assert decode_request(b'{"model":"m","n":1,"n":2}').n == 2


def test_nulls_of_old_clients_mean_the_defaults() -> None:
    nulls = dict.fromkeys(
        ["prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
         "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user"]
    )  # fmt: skip
    assert decode(**nulls) == CompletionRequest(model="m")


def test_the_model_of_the_path_is_used_without_one_in_the_body() -> None:
    assert decode_request(b"{}", path_model="davinci").model == "davinci"
    assert decode_request(b'{"model":null}', path_model="davinci").model == "davinci"
    assert decode_request(b'{"model":"davinci"}', path_model="davinci").model == "davinci"


def test_keyword_arguments_may_contain_tuples_and_integer_token_ids() -> None:
    request = check_request({"model": "m", "prompt": (1, 2), "stop": ("a", "b"), "logit_bias": {50: -100}})
    assert request.prompt == [1, 2]
    assert request.stop == ("a", "b")
    assert request.logit_bias == {50: -100.0}
    assert check_request({"model": "m", "prompt": ([1], (2, 3))}).prompt == [[1], [2, 3]]
    parts = ({"type": "text", "text": "a"}, {"type": "text", "text": "b"})
    assert check_request({"model": "m", "prediction": {"type": "content", "content": parts}}).prediction == "ab"


def test_a_request_does_not_share_its_prompt_with_the_caller() -> None:
    prompt = [1, 2]
    request = check_request({"model": "m", "prompt": prompt})
    prompt.append(3)
    assert request.prompt == [1, 2]


def test_a_hundred_thousand_token_ids_are_accepted_unchanged() -> None:
    prompt = list(range(100_000))
    assert decode(prompt=prompt).prompt == prompt


def test_every_request_has_a_random_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "secrets", secrets)
    seeds = {check_request({"model": "m"}).random_seed for _ in range(9)}
    assert len(seeds) == 9 and max(seeds) <= request_module.MAX_RANDOM_SEED


def test_a_request_of_sillytavern_is_accepted() -> None:
    """What its vLLM connection sends (VLLM_KEYS in src/constants.js, 1.13), with its neutral presets."""
    sent = {
        "model": "m", "prompt": "Once", "best_of": 1, "frequency_penalty": 0, "logprobs": 5, "max_tokens": 200, "n": 1,
        "presence_penalty": 0, "seed": 5, "stop": ["\nUser:"], "stream": True, "temperature": 1, "top_p": 1,
        "top_k": -1, "min_p": 0.05, "repetition_penalty": 1, "length_penalty": 1, "early_stopping": False,
        "ignore_eos": False, "min_tokens": 0, "skip_special_tokens": True, "spaces_between_special_tokens": True,
        "include_stop_str_in_output": False,
    }  # fmt: skip
    assert check_request(sent).min_p == 0.05
