"""The parameter table is complete and consistent, and agrees with CompletionRequest."""

from __future__ import annotations

import msgspec
import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.parameters import BY_NAME, PARAMETERS, TABLES
from onward.api.parameter import Parameter
from onward.completions.request import CompletionRequest
from onward.errors import ApiError
from tests import samplers
from tests.tables import each_row

OPENAI = {
    "model", "prompt", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
    "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user",
}  # fmt: skip
EXTENSIONS = {
    "allowed_token_ids", "bad_words", "ban_eos_token", "banned_tokens", "return_token_ids", "prompt_logprobs",
    "stop_token_ids",
    "truncate_prompt_tokens", *samplers.PARAMETERS, "dynatemp_range", "dynatemp_exponent", "dry_multiplier", "dry_base",
    "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "repeat_last_n", "penalize_nl", "mirostat",
    "mirostat_tau", "mirostat_eta", "samplers", "temperature_last",
    "top_k", "min_p", "repetition_penalty", "min_tokens", "ignore_eos", "skip_special_tokens",
    "include_stop_str_in_output", "return_tokens_as_token_ids", "max_completion_tokens", "add_special_tokens",
    "prediction", "cache_salt", "priority", "$schema",
    "response_format", "json_schema", "json_object", "regex", "choice", "grammar", "whitespace_pattern",
    "disable_any_whitespace",
}  # fmt: skip
EMPTY: dict[str, object] = {"stop": (), "logit_bias": {}} | dict.fromkeys(
    ("stop_token_ids", "allowed_token_ids", "banned_tokens", "bad_words", "choice"), ()
)
"""Values of request fields that are never None, where the table's default is None."""

NEEDS: dict[str, dict[str, object]] = {"stream_options": {"stream": True}, "best_of": {"n": 2}}
"""Other fields that a parameter's example needs."""

ROWS = [*PARAMETERS, *(inner for row in PARAMETERS for inner in row.inner)]


def request_defaults() -> dict[str, object]:
    """Return the defaults of all fields that clients can set."""
    set_by_dialects = {"fill_context", "infill", "is_background", "weight"}
    names = {field.name for field in msgspec.structs.fields(CompletionRequest)} - set_by_dialects - {"random_seed"}
    return {name: getattr(CompletionRequest(), name) for name in names}


def test_the_fields_and_defaults_of_a_request_are_those_of_the_table() -> None:
    table = {
        row.field: EMPTY.get(row.name) if row.default is None else row.default
        for row in ROWS
        if row.field is not None and row.alias_of is None
    }
    assert table == request_defaults()


def test_exactly_the_fields_of_openais_schema_have_the_origin_openai() -> None:
    assert {row.name for row in PARAMETERS if row.origin == "openai"} == OPENAI


def test_every_documented_extension_is_in_the_table() -> None:
    extensions = {row.name for row in PARAMETERS if row.origin == "extension" and row.dialect is None}
    assert extensions == EXTENSIONS


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(PARAMETERS)


def test_an_alias_refers_to_a_field_of_the_request() -> None:
    aliases = {row.alias_of for row in ROWS if row.alias_of is not None}
    assert aliases <= set(request_defaults())


def test_the_strict_profile_has_only_openais_fields() -> None:
    assert set(TABLES["strict"]) == OPENAI
    assert set(TABLES["strict"].inner["stream_options"]) == {
        "include_usage",
        "include_obfuscation",
    }
    assert set(TABLES["default"]) == set(TABLES["lenient"]) == set(BY_NAME)


@each_row("row", PARAMETERS, ids=lambda row: row.name)
def test_the_example_of_every_parameter_is_accepted_and_has_an_effect(row: Parameter) -> None:
    needs = NEEDS.get(row.name, {})
    request = check_request({"model": "m", **needs, row.name: row.example})
    plain = check_request({"model": "m", **needs})
    assert (request != plain) == (row.has_effect and row.kind not in ("fixed", "duration", "link"))


@each_row("row", PARAMETERS, ids=lambda row: row.name)
def test_null_is_the_default_of_every_optional_parameter(row: Parameter) -> None:
    fields = {"model": "m", row.name: None}
    if row.nullable:
        assert check_request(fields) == CompletionRequest(model="m")
    else:
        with pytest.raises(ApiError):
            check_request(fields)


@each_row("row", ROWS, ids=lambda row: row.name)
def test_the_help_of_every_parameter_is_a_sentence(row: Parameter) -> None:
    assert row.help.endswith(".") and 15 < len(row.help) < 300


def test_a_parameters_flag_has_hyphens() -> None:
    assert BY_NAME["max_completion_tokens"].flag == "--max-completion-tokens"
