"""llama.cpp's own API: the same completions as /v1/completions, in its shapes, within its limits."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from onward.api.llama_server.fields import COMPLETION, INFILL, check_llama_request
from onward.api.llama_server.reply import LineLimits, selected
from onward.backends.base import Backend
from onward.backends.embedded import EmbeddedBackend
from onward.backends.restricted import RestrictedBackend
from onward.completions.request import CompletionRequest, InfillContext
from onward.completions.sampling_params import sampling_params
from onward.completions.token_rules import NO_RULES
from onward.engine_load import EngineLoad
from onward.model_files.toy import END
from onward.models.registry import ListedModel
from onward.sampling.params import Mirostat, SamplingParams
from onward.server.app import App
from onward.server.keys import collect_keys
from tests.api.served import events, openai_text, post, toy_app
from tests.server.fakes import Call, FakeBackend, delta, in_loop, settings
from tests.toy_backend import let_steps_count_the_same, make_backend, on_toy, running

OWN_FIELDS = {
    "input_extra", "input_prefix", "input_suffix", "n_indent", "n_predict", "n_probs", "prompt",
    "response_fields", "return_tokens", "samplers", "t_max_predict_ms", "timings_per_token",
}  # fmt: skip
"""Fields that this dialect's own code reads; each has a test here."""
REQUEST: tuple[str, dict[str, Any]] = ("/completion", {"prompt": "Once upon", "n_predict": 20})
"""One that is computed, and sampled: its path and body."""

PLAIN = {"temperature": 0, "n_predict": 12}
"""The toy model repeats patterns of its prompt; greedy sampling."""
PROMPT = "ab ab ab ab"


@in_loop
async def test_a_completion_is_that_of_the_completions_route() -> None:
    async with toy_app() as app:
        answer = (await post(app, "/completion", prompt=PROMPT, **PLAIN)).json
        text = await openai_text(app, prompt=PROMPT, temperature=0, max_tokens=12)
    assert answer["content"] == text != ""
    assert answer["stop"] is True and answer["stop_type"] == "limit" and answer["truncated"] is False
    assert answer["tokens_predicted"] == 12 == answer["timings"]["predicted_n"]
    assert answer["tokens_evaluated"] == answer["timings"]["prompt_n"] > 0
    assert answer["model"] == "toy" and answer["prompt"] == PROMPT and answer["index"] == 0
    assert answer["generation_settings"]["n_predict"] == 12
    assert answer["tokens"] == []


@in_loop
async def test_a_stream_folds_to_the_whole_answer() -> None:
    async with toy_app() as app:
        whole = (await post(app, "/completion", prompt=PROMPT, return_tokens=True, **PLAIN)).json
        call = await post(app, "/completion", prompt=PROMPT, stream=True, **PLAIN)
    *partial, final = events(call)
    assert call.headers["content-type"] == "text/event-stream"
    assert "".join(event["content"] for event in partial) == whole["content"]
    assert [token for event in partial for token in event["tokens"]] == whole["tokens"] and whole["tokens"]
    assert not any(event["stop"] for event in partial)
    assert final["stop"] is True and final["content"] == "" and final["tokens"] == []
    for name in ("stop_type", "stopping_word", "tokens_predicted", "tokens_evaluated", "truncated"):
        assert final[name] == whole[name]


@in_loop
async def test_without_a_limit_the_context_is_filled() -> None:
    async with toy_app() as app:
        answer = (await post(app, "/completion", prompt=PROMPT, temperature=0, ignore_eos=True)).json
        context = (await Call(app, "GET", "/props").done()).json["default_generation_settings"]["n_ctx"]
    assert answer["tokens_evaluated"] + answer["tokens_predicted"] == context
    assert answer["stop_type"] == "limit" and answer["truncated"] is True


@in_loop
async def test_a_stop_string_is_named_and_not_part_of_the_text() -> None:
    async with toy_app() as app:
        text = await openai_text(app, prompt=PROMPT, temperature=0, max_tokens=12)
        word = text[3:5]
        answer = (await post(app, "/completion", prompt=PROMPT, stop=[word, "zzz"], **PLAIN)).json
        call = await post(app, "/completion", prompt=PROMPT, stop=[word], stream=True, **PLAIN)
    assert answer["stop_type"] == "word" and answer["stopping_word"] == word
    assert answer["content"] == text[: text.index(word)]
    assert "".join(event["content"] for event in events(call)) == answer["content"]


@in_loop
@pytest.mark.parametrize(
    ("fields", "content", "listed"),
    [
        ({"stop": ["\x03c"], "logit_bias": [[99, 50]]}, "ccc", ["c", "c", "c"]),
        ({"stop": ["cc"], "logit_bias": [[99, 50]]}, "", []),
        ({"stop": ["he"], "logit_bias": [[261, 50]]}, " t", [" the"]),
        ({"stop": ["e th"], "logit_bias": [[261, 50]]}, " th", [" the"]),
        ({"stop": ["the the the the"], "logit_bias": [[261, 50]]}, " the the the", [" the", " the", " the"]),
        ({"grammar": 'root ::= "a\\nbc"', "n_indent": 1}, "a\n", ["a", "\n"]),
    ],
)
async def test_no_token_is_listed_after_a_stop_string(fields: dict[str, Any], content: str, listed: list[str]) -> None:
    """As many entries as the content has tokens, including one that the cut divides: server-context.cpp leaves out the
    tokens of the stop string."""
    asked = {"prompt": PROMPT, "temperature": 0, "n_predict": 3, "n_probs": 1, "return_tokens": True, **fields}
    async with toy_app() as app:
        whole = (await post(app, "/completion", **asked)).json
        *partial, final = events(await post(app, "/completion", stream=True, **asked))
    streamed = [entry for event in partial for entry in event.get("completion_probabilities", [])]
    assert whole["content"] == "".join(event["content"] for event in partial) == content
    assert [entry["token"] for entry in whole.get("completion_probabilities", [])] == listed
    assert streamed == whole.get("completion_probabilities", [])
    assert whole["tokens"] == [token for event in partial for token in event["tokens"]]
    assert len(whole["tokens"]) == len(listed) and final["stopping_word"] == whole["stopping_word"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_draft_never_changes_which_stop_ended_a_text(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`min_tokens` holds the stop string back until the end token, which comes in one step with an accepted draft."""
    let_steps_count_the_same(monkeypatch)
    asked = {"prompt": "cccccccc", "logit_bias": [[99, 50], [END, 100]], "min_tokens": 9, "stop": ["cc"], **PLAIN}

    async def ask(backend: EmbeddedBackend) -> tuple[str, str, int, bool]:
        call = await post(App(backend, settings()), "/completion", stream=stream, **asked)
        *_, last = events(call) if stream else [call.json]
        is_drafted = backend.load()["toy"].drafts.lookup_accepted > 0
        return last["stop_type"], last["stopping_word"], last["tokens_predicted"], is_drafted

    assert on_toy(ask, speculate=True) == ("eos", "", 9, True)
    assert on_toy(ask, speculate=False) == ("eos", "", 9, False)


@in_loop
async def test_an_end_token_is_an_end() -> None:
    app = App(FakeBackend(delta(" there"), delta("", finish="stop")), settings())
    answer = (await post(app, "/completion", prompt="x", stop=["no"])).json
    assert (answer["stop_type"], answer["stopping_word"], answer["content"]) == ("eos", "", " there")


@in_loop
async def test_probabilities_have_ids_texts_and_bytes() -> None:
    async with toy_app() as app:
        answer = (await post(app, "/completion", prompt=PROMPT, n_probs=3, temperature=0, n_predict=2)).json
    first, second = answer["completion_probabilities"]
    assert first["token"].encode() == bytes(first["bytes"]) and first["logprob"] <= 0
    assert first["top_logprobs"][0]["id"] == first["id"]
    assert len(first["top_logprobs"]) == len(second["top_logprobs"]) == 3
    values = [each["logprob"] for each in first["top_logprobs"]]
    assert values == sorted(values, reverse=True)


@in_loop
async def test_several_choices_are_an_array_and_events_with_an_index() -> None:
    async with toy_app() as app:
        fields: dict[str, Any] = {"prompt": PROMPT, "n_cmpl": 2, "n_predict": 5, "seed": 3, "ignore_eos": True}
        whole = (await post(app, "/completion", **fields)).json
        call = await post(app, "/completion", stream=True, **fields)
    assert [each["index"] for each in whole] == [0, 1]
    for index in (0, 1):
        text = "".join(event["content"] for event in events(call) if event["index"] == index)
        assert text == whole[index]["content"]
    assert [event["stop"] for event in events(call)].count(True) == 2


@in_loop
async def test_fields_are_selected_by_path() -> None:
    async with toy_app() as app:
        fields = ["content", "timings/prompt_n", "generation_settings/n_predict", "nothing/here", ""]
        answer = (await post(app, "/completion", prompt=PROMPT, response_fields=fields, **PLAIN)).json
        nothing = (await post(app, "/infill", response_fields=[""], samplers=[], n_predict=0)).json
    assert list(answer) == ["content", "timings/prompt_n", "generation_settings/n_predict"]
    assert answer["generation_settings/n_predict"] == 12
    assert nothing == {}


def test_without_a_selection_all_fields_are_returned() -> None:
    assert selected({"a": 1}, ()) == {"a": 1}


@in_loop
async def test_an_infill_is_that_of_prompt_and_suffix() -> None:
    async with toy_app() as app:
        answer = (await post(app, "/infill", input_prefix=PROMPT, input_suffix=" end", **PLAIN)).json
        text = await openai_text(app, prompt=PROMPT, suffix=" end", temperature=0, max_tokens=12)
    assert answer["content"] == text != ""


@in_loop
async def test_an_infill_reaches_the_backend_with_its_context() -> None:
    backend = FakeBackend()
    app = App(backend, settings())
    extra = [{"filename": "a.py", "text": "x = 1\n", "time": [1, 2]}, {"text": "y"}]
    await post(app, "/infill", input_prefix="def f():\n", input_suffix="\n", prompt="    re", input_extra=extra)
    (request,) = backend.requests
    assert request.prompt == "def f():\n" and request.suffix == "\n" and request.fill_context
    assert request.infill == InfillContext((("a.py", "x = 1\n"), ("tmp", "y")), "    re")


@in_loop
async def test_text_typed_at_the_cursor_shares_the_whole_prefix_before_it() -> None:
    prefix, suffix = "x = 1\n" * 20, "y = 2\n" * 20
    async with toy_app() as app:
        texts = {"input_prefix": prefix, "input_suffix": suffix}
        await post(app, "/infill", **texts, prompt="pri", n_predict=0)
        answer = (await post(app, "/infill", **texts, prompt="print", n_predict=1)).json
    assert answer["tokens_cached"] > len(prefix) + len(suffix)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "x", "temperature": "hot"}, "Invalid type for 'temperature'"),
        ({"prompt": "x", "mirostat": 3}, "Invalid 'mirostat'"),
        ({"prompt": "x", "frobnicate": 1}, "Unrecognized request argument supplied: frobnicate"),
        ({"prompt": ["a", "b"]}, "'prompt' has several prompts"),
        ({}, "Missing required parameter: 'prompt'"),
        ({"prompt": "x", "samplers": ["mystery"]}, "Invalid value: 'mystery'"),
        ({"prompt": "x", "cache_prompt": False}, "'cache_prompt' does not support false"),
        ({"prompt": "x", "logit_bias": [["Hello", 1]]}, "expected a token id"),
    ],
)
def test_invalid_requests_have_llama_servers_errors(fields: dict[str, Any], message: str) -> None:
    async def check() -> None:
        async with toy_app() as app:
            call = await post(app, "/completion", **fields)
        assert call.status == 400
        error = call.json["error"]
        assert message in error["message"] and error["code"] == 400 and error["type"] == "invalid_request_error"

    in_loop(check)()


@in_loop
async def test_the_error_for_a_prompt_that_does_not_fit_has_the_numbers() -> None:
    async with toy_app() as app:
        call = await post(app, "/completion", prompt="x" * 2049)
    error = call.json["error"]
    assert call.status == error.pop("code") == 400 and error.pop("type") == "exceed_context_size_error"
    assert error.pop("message") == (
        "request (2049 tokens) exceeds the available context size (2048 tokens), try increasing it"
    )
    assert error == {"n_prompt_tokens": 2049, "n_ctx": 2048}


@in_loop
async def test_keys_are_required_in_the_same_way() -> None:
    given = settings(api_key=("sk-secret",))
    async with toy_app(collect_keys(given), api_key=("sk-secret",)) as app:
        refused = await post(app, "/completion", prompt="x")
        body = json.dumps({"prompt": "x", "n_predict": 1}).encode()
        accepted = await Call(app, "POST", "/completion", body, authorization="Bearer sk-secret").done()
    assert refused.status == 401 and refused.json["error"]["type"] == "authentication_error"
    assert accepted.status == 200


@in_loop
async def test_a_failure_ends_a_stream_with_an_error() -> None:
    app = App(FakeBackend(delta("a"), RuntimeError("secret")), settings())
    first, last = events(await post(app, "/completion", prompt="x", stream=True))
    assert first["content"] == "a" and last["error"]["code"] == 500 and "secret" not in json.dumps(last)


@in_loop
async def test_a_client_that_disconnects_ends_the_work() -> None:
    backend = FakeBackend(delta("a"), asyncio.Event())
    call = Call(App(backend, settings()), "POST", "/completion", b'{"prompt": "x", "stream": true}')
    await call.until(2)
    call.leave()
    await call.done()
    assert backend.answers[0].closed.is_set()


class Busy(FakeBackend):
    """All rows of its first model's engine are in use. The second model is an adapter of it."""

    def models(self) -> list[ListedModel]:
        base, adapter, *aliases = super().models()
        return [base, replace(adapter, parent=base.id), *aliases]

    def load(self) -> dict[str, EngineLoad]:
        (only,) = super().load().values()
        return {"storyteller": only, "org/tiny": EngineLoad()}


async def is_processing(backend: Backend, query: str = "") -> list[bool]:
    """Of each slot. The settings allow four."""
    slots = (await Call(App(backend, settings(max_rows=4)), "GET", f"/slots{query}").done()).json
    assert [slot["id"] for slot in slots] == list(range(len(slots)))
    return [slot["is_processing"] for slot in slots]


@in_loop
async def test_slots_are_the_rows_of_the_engine_which_may_be_fewer_than_the_settings_allow() -> None:
    async with running(make_backend(max_rows=3)) as backend:
        assert await is_processing(backend) == [False] * 3
        props = (await Call(App(backend, settings(max_rows=4)), "GET", "/props").done()).json
        assert props["total_slots"] == 3
    assert await is_processing(Busy()) == [True] * 3
    busy = await Call(App(Busy(), settings(max_rows=4)), "GET", "/slots?fail_on_no_slot=1").done()
    assert busy.status == 503 and busy.json["error"]["type"] == "unavailable_error"


@in_loop
@pytest.mark.parametrize("name", ["org/tiny", "alias"])
async def test_slots_of_an_adapter_are_those_of_its_base(name: str) -> None:
    backend = Busy()
    backend.aliases = {"alias": "org/tiny"}
    assert await is_processing(backend, f"?model={name}") == [True] * 3


@in_loop
async def test_slots_of_an_adapter_whose_base_the_key_may_not_use_are_idle() -> None:
    backend = RestrictedBackend(Busy(), lambda names: "org/tiny" in names)
    assert await is_processing(backend, "?model=org/tiny") == [False] * 4


@in_loop
async def test_a_server_with_one_model_answers_to_every_name() -> None:
    """llama.vscode sends the name of its chat model, `google/gemini-2.5-flash` by default."""
    async with toy_app() as app:
        answer = (await post(app, "/infill", input_prefix=PROMPT, model="google/gemini-2.5-flash", **PLAIN)).json
        props = (await Call(app, "GET", "/props?model=google/gemini-2.5-flash").done()).json
    assert answer["model"] == "toy" == props["model_alias"] and answer["content"]


@in_loop
async def test_a_server_with_several_models_uses_the_requested_one() -> None:
    class Several(FakeBackend):
        def load(self) -> dict[str, EngineLoad]:
            (only,) = super().load().values()
            return dict.fromkeys(("storyteller", "org/tiny"), only)

    backend = Several(delta("a", finish="stop"))
    app = App(backend, settings())
    await post(app, "/infill", input_prefix="x", model="org/tiny")
    assert [request.model for request in backend.requests] == ["org/tiny"]
    assert (await Call(app, "GET", "/slots?model=other").done()).status == 404


@in_loop
async def test_dialects_can_be_turned_off() -> None:
    for dialects, is_served in ((("none",), False), (("llama-server",), True), (("all",), True)):
        app = App(FakeBackend(), settings(dialects=dialects))
        assert ((await post(app, "/completion", prompt="x")).status == 200) == is_served
        document = (await Call(app, "GET", "/openapi.json").done()).json
        assert ("/completion" in document["paths"]) == is_served


def params_of(sent: dict[str, object]) -> SamplingParams:
    checked = check_llama_request(sent, COMPLETION, "default")
    known = {name: value for name, value in checked.items() if name in CompletionRequest.__struct_fields__}
    return sampling_params(CompletionRequest(**known), 0, NO_RULES, ())


@pytest.mark.parametrize(
    ("sent", "order"),
    [
        ({}, ("top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature")),
        ({"samplers": ["penalties", "top_p", "infill", "top_k"]}, ("top_p", "top_k")),
        ({"samplers": []}, ()),
    ],
)
def test_samplers_act_in_the_order_of_llama_server_and_only_if_listed(
    sent: dict[str, object], order: tuple[str, ...]
) -> None:
    params = params_of({"prompt": "x", **sent})
    assert params.needs_ranking and params.order == order
    acts = set(order)
    assert (params.top_k, params.top_p) == ((40, 0.95) if order else (0, 1))
    assert params.min_p == (0.05 if "min_p" in acts else 0)
    assert params.temperature == (0.8 if "temperature" in acts else 1)


def test_mirostat_excludes_other_filters_as_in_llama_server() -> None:
    params = params_of({"prompt": "x", "mirostat": 2, "mirostat_tau": 3, "top_k": 1, "xtc_probability": 1})
    assert params.mirostat == Mirostat(2, 3.0, 0.1) and params.temperature == 0.8 and not params.is_greedy
    assert params.chain == ("temperature",)


def test_the_default_order_of_samplers_needs_no_sort() -> None:
    assert params_of({"prompt": "x", "top_p": 1, "min_p": 0, "top_k": 0}).needs_ranking is False


def test_biases_are_pairs_or_an_object() -> None:
    for given in ([[7, 1.5], [8, False]], {"7": 1.5, "8": -100}):
        checked = check_llama_request({"prompt": "x", "logit_bias": given}, COMPLETION, "default")
        assert checked["logit_bias"] == {7: 1.5, 8: -100.0}


def test_every_field_of_llama_vims_requests_is_known() -> None:
    """The fields of llama.vim a1c8e6e4 (autoload/llama.vim)."""
    sent = {
        "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": [], "prompt": "", "n_predict": 128,
        "stop": [], "n_indent": 0, "top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"], "stream": False,
        "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000, "response_fields": ["content"],
    }  # fmt: skip
    assert check_llama_request(sent, INFILL, "default")["n_predict"] == 128


@pytest.mark.parametrize(
    ("parts", "text", "is_limited"),
    [
        (["a\n    b\n    c"], "a\n    b\n    c", False),
        (["a\n    b\n  c\n"], "a\n    b\n  ", True),
        (["a\n", "  ", "  b", "\n ", " c"], "a\n    b\n  ", True),
        (["a\n\n"], "a\n", True),
        (["x"], "x", False),
    ],
)
def test_a_line_that_is_indented_too_little_is_cut(parts: list[str], text: str, is_limited: bool) -> None:
    limits, kept, ended = LineLimits(4, 0.0), "", False
    for part in parts:
        more, ended = limits.feed(part, 0.0)
        kept += more
    assert (kept, ended) == (text, is_limited)


def test_the_time_limit_waits_for_a_line_break() -> None:
    limits = LineLimits(0, 1.0)
    assert limits.feed("a", 5.0) == ("a", False)
    assert limits.feed("\n", 0.5) == ("\n", False)
    assert limits.feed("b", 1.5) == ("b", True)


@in_loop
async def test_a_grammar_and_a_schema_constrain_the_text() -> None:
    async with toy_app() as app:
        chosen = (await post(app, "/completion", prompt=PROMPT, grammar='root ::= "yes" | "no"')).json
        schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
        written = (await post(app, "/completion", prompt=PROMPT, json_schema=schema)).json
        unset = (await post(app, "/completion", prompt=PROMPT, grammar="", json_schema=False, n_predict=2)).json
        broken = await post(app, "/completion", prompt=PROMPT, grammar="root ::= (")
        both = await post(app, "/completion", prompt=PROMPT, grammar='root ::= "a"', json_schema=schema)
    assert chosen["content"] in ("yes", "no") and chosen["stop_type"] == "eos"
    assert json.loads(written["content"]) == {"a": 1}
    assert unset["tokens_predicted"] == 2
    assert broken.status == 400 and "')' is expected" in broken.json["error"]["message"]
    assert both.status == 400 and "at the same time" in both.json["error"]["message"]


@in_loop
async def test_tokenize_accepts_llama_servers_fields_too() -> None:
    async with toy_app() as app:
        ids = (await post(app, "/tokenize", prompt="aۿ", add_special_tokens=False)).json["tokens"]
        assert (await post(app, "/tokenize", content="aۿ")).json == {"tokens": ids}
        pieces = (await post(app, "/tokenize", content="aۿ", with_pieces=True)).json["tokens"]
        assert (await post(app, "/detokenize", tokens=ids)).json["content"] == "aۿ"
        mixed = await post(app, "/tokenize", content="a", prompt="a")
        unparsed = await post(app, "/tokenize", content="a", parse_special=False)
    assert [piece["id"] for piece in pieces] == ids
    assert [piece["piece"] for piece in pieces] == ["a", [0xDB], [0xBF]]
    assert mixed.status == 400 and "prompt" in mixed.error["message"]
    assert unparsed.status == 400 and unparsed.error["param"] == "parse_special"


@in_loop
async def test_without_the_dialect_tokenize_has_one_shape() -> None:
    async with toy_app(dialects=("none",)) as app:
        assert (await post(app, "/tokenize", content="a")).status == 400
        assert (await post(app, "/detokenize", tokens=[97])).json == {"prompt": "a"}


@in_loop
async def test_tokenize_adds_a_start_token_only_where_llama_servers_client_wants_it() -> None:
    app = App(FakeBackend(), settings())
    assert (await post(app, "/tokenize", content="hi")).json == {"tokens": [104, 105]}
    assert (await post(app, "/tokenize", content="hi", add_special=True)).json == {"tokens": [0, 104, 105]}
    assert (await post(app, "/tokenize", content="x" * 4_000_001)).error["param"] == "content"
