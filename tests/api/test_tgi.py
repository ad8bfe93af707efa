"""text-generation-inference's API: the same completions as /v1/completions, with a list of their tokens."""

from __future__ import annotations

import json
from typing import Any

from onward.completions.answer import Delta, Finish
from onward.errors import EngineStopped, Overloaded
from onward.server.app import App
from tests.api.served import events, openai_text, post, toy_app
from tests.server.fakes import Call, FakeBackend, delta, in_loop, settings

OWN_FIELDS = {"details", "do_sample", "inputs", "max_new_tokens", "return_full_text", "top_n_tokens"}
"""Fields that this dialect's own code reads; each has a test here."""
REQUEST: tuple[str, dict[str, Any]] = (
    "/generate",
    {"inputs": "Once upon", "parameters": {"do_sample": True, "max_new_tokens": 20}},
)
"""One that is computed, and sampled: its path and body."""

PROMPT = "ab ab ab ab"
GREEDY: dict[str, Any] = {"max_new_tokens": 12, "details": True}


@in_loop
async def test_a_completion_is_that_of_the_completions_route() -> None:
    async with toy_app() as app:
        answer = (await post(app, "/generate", inputs=PROMPT, parameters=GREEDY)).json
        text = await openai_text(app, prompt=PROMPT, temperature=0, max_tokens=12)
        plain = (await post(app, "/generate", inputs=PROMPT, parameters={"max_new_tokens": 12})).json
        full = (await post(app, "/", inputs=PROMPT, parameters={"max_new_tokens": 12, "return_full_text": True})).json
    assert answer["generated_text"] == text != "" and plain == {"generated_text": text}
    assert full == [{"generated_text": PROMPT + text}]
    details = answer["details"]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("length", 12, None)
    assert "".join(token["text"] for token in details["tokens"]) == text and details["prefill"] == []
    assert all(token["logprob"] <= 0 and not token["special"] for token in details["tokens"])


@in_loop
async def test_a_stream_has_an_event_per_token_and_folds_to_the_whole_answer() -> None:
    parameters = GREEDY | {"top_n_tokens": 2}
    async with toy_app() as app:
        whole = (await post(app, "/generate", inputs=PROMPT, parameters=parameters)).json
        streamed = events(await post(app, "/generate_stream", inputs=PROMPT, parameters=parameters))
        same = events(await post(app, "/", inputs=PROMPT, parameters=parameters, stream=True))
    assert [event["token"] for event in streamed] == whole["details"]["tokens"]
    assert [event["top_tokens"] for event in streamed] == whole["details"]["top_tokens"]
    assert [event["index"] for event in streamed] == list(range(1, 13))
    assert all(event["generated_text"] is None for event in streamed[:-1])
    assert streamed[-1]["generated_text"] == whole["generated_text"]
    assert streamed[-1]["details"]["generated_tokens"] == 12 and streamed[-1]["details"]["input_length"] > 0
    assert same == streamed


@in_loop
async def test_a_stop_string_is_part_of_the_text() -> None:
    async with toy_app() as app:
        text = await openai_text(app, prompt=PROMPT, temperature=0, max_tokens=12)
        word = text[3:5]
        answer = (await post(app, "/generate", inputs=PROMPT, parameters=GREEDY | {"stop": [word]})).json
        streamed = events(await post(app, "/generate_stream", inputs=PROMPT, parameters=GREEDY | {"stop": [word]}))
    assert answer["generated_text"] == text[: text.index(word) + len(word)] == streamed[-1]["generated_text"]
    assert answer["details"]["finish_reason"] == "stop_sequence" == streamed[-1]["details"]["finish_reason"]


@in_loop
async def test_an_end_token_is_an_event_of_its_own() -> None:
    in_one_step = [Delta(0, " the end"), Delta(0, "", [], Finish("stop", 0))]
    app = App(FakeBackend(in_one_step), settings())
    ended = (await post(app, "/generate", inputs="x", parameters={"details": True, "stop": ["end"]})).json
    assert ended["details"]["finish_reason"] == "eos_token", "not the stop string that the text happens to end with"
    app = App(FakeBackend(delta(" there"), delta("", finish="stop")), settings())
    (end,) = events(await post(app, "/generate_stream", inputs="x"))
    assert end["token"]["special"] is True and end["token"]["text"] == "<end>" and end["token"]["logprob"] is None
    assert end["generated_text"] == " there" and end["details"]["finish_reason"] == "eos_token"


@in_loop
async def test_sampling_is_what_the_parameters_say_and_has_a_seed() -> None:
    backend = FakeBackend()
    app = App(backend, settings())
    for parameters in (None, {}, {"do_sample": True, "seed": 5}, {"temperature": 0.5}, {"max_new_tokens": 3}):
        await post(app, "/generate", inputs="x", parameters=parameters)
    absent, empty, seeded, warm, short = backend.requests
    assert absent.temperature == 1.0 and absent.seed is None and absent.fill_context
    assert empty.temperature == 0.0 and empty.seed is None
    assert seeded.seed == 5 and seeded.temperature == 1.0
    assert warm.temperature == 0.5 and warm.seed is None
    assert short.temperature == 0.0 and short.max_tokens == 3 and not short.fill_context


@in_loop
async def test_the_reported_seed_repeats_the_text() -> None:
    parameters: dict[str, Any] = {"do_sample": True, "max_new_tokens": 8, "details": True}
    async with toy_app() as app:
        first = (await post(app, "/generate", inputs=PROMPT, parameters=parameters)).json
        seed = first["details"]["seed"]
        again = (await post(app, "/generate", inputs=PROMPT, parameters=parameters | {"seed": seed})).json
        greedy = (await post(app, "/generate", inputs=PROMPT, parameters={"details": True, "max_new_tokens": 2})).json
    assert again == first
    assert greedy["details"]["seed"] is None


@in_loop
async def test_errors_are_those_of_tgi() -> None:
    async with toy_app() as app:
        wrong = await post(app, "/generate", inputs="x", parameters={"best_of": 2})
        long = await post(app, "/generate", inputs="x", parameters={"max_new_tokens": 10**6})
        unknown = await post(app, "/generate", inputs="x", parameters={"frob": 2})
        exact = await post(app, "/generate", inputs="xyz", parameters={"max_new_tokens": 2047})
        prompt = await post(app, "/generate", inputs="x" * 2049)
    given = "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: "
    assert exact.json["error"] == given + "3 `inputs` tokens and 2047 `max_new_tokens`"
    assert long.json["error"] == given + "1 `inputs` tokens and 1000000 `max_new_tokens`"
    assert prompt.json["error"] == "Input validation error: `inputs` must have less than 2048 tokens. Given: 2049"
    for call in (wrong, long, unknown):
        assert call.status == 422 and call.json["error_type"] == "validation"
        assert call.json["error"].startswith("Input validation error: ")
    backend = FakeBackend()
    app = App(backend, settings())
    for error, status, kind in (
        (Overloaded(), 429, "overloaded"),
        (EngineStopped(), 503, "unhealthy"),
        (RuntimeError("secret"), 424, "generation"),
    ):
        backend.error_to_raise = error
        call = await post(app, "/generate", inputs="x")
        assert (call.status, call.json["error_type"]) == (status, kind) and "secret" not in call.json["error"]
    app = App(FakeBackend(delta("a", finish=None), RuntimeError("secret")), settings())
    call = await post(app, "/generate_stream", inputs="x")
    assert call.json["error_type"] == "generation"  # nothing was sent yet


@in_loop
async def test_info_describes_the_model() -> None:
    answer = (await Call(App(FakeBackend(), settings()), "GET", "/info").done()).json
    assert answer["model_id"] == "storyteller" and answer["max_total_tokens"] == 512 and answer["router"] == "onward"


@in_loop
async def test_a_grammar_constrains_the_text() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    async with toy_app() as app:

        async def ask(grammar: object) -> Call:
            return await post(app, "/generate", inputs="x", parameters={"grammar": grammar})

        written = await ask({"type": "json", "value": schema})
        digits = await ask({"type": "regex", "value": "[0-9]{3}"})
        wrong = ({"type": "xml", "value": "x"}, {"type": "regex"}, {"type": "regex", "value": 3}, "x")
        refused = [await ask(grammar) for grammar in wrong]
    assert json.loads(written.json["generated_text"]) == {"a": 1}
    assert len(digits.json["generated_text"]) == 3 and digits.json["generated_text"].isdigit()
    assert {call.status for call in refused} == {422}
