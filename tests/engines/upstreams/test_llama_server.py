"""llama-server as the engine: what it is sent, and what its answers and faults become."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onward.api.openai.decode import check_request
from onward.api.openai.reply import fold_chunks
from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.compose.upstreams import upstream_at
from onward.constraints.errors import GrammarError
from onward.engines.upstreams.base import Segment, UpstreamError
from onward.engines.upstreams.choice import ChoiceRun, UpstreamGrammars
from onward.engines.upstreams.engine import UpstreamEngine
from onward.engines.upstreams.llama_server import LlamaServer, request_body
from onward.errors import EngineStopped, InvalidRequest, ServerError, SetupError
from onward.model_files.toy import END
from onward.models.resolve import built_in_folder
from onward.sampling.params import SamplingParams
from onward.settings import Settings
from tests.engine.harness import make_job
from tests.engines.upstreams.harness import PROMPT, ask, complete, give_up, on, settings, spell
from tests.engines.upstreams.standin import TOKENIZER, StandIn, stand_in
from tests.waiting import PATIENCE_SECONDS, until


@pytest.fixture
def server() -> Iterator[StandIn]:
    with stand_in("llama") as running:
        yield running


def test_a_completion_is_computed_there_by_token_ids(server: StandIn) -> None:
    spell(server, "Paris.")
    answer = ask(server, max_tokens=20, echo=True)
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason) == ("Say:Paris.", "stop")
    assert answer.usage is not None and (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 6)
    assert answer.usage.prompt_tokens_details.cached_tokens == 1
    assert answer.system_fingerprint is not None and answer.system_fingerprint.startswith("fp_llama_server_")
    [request] = server.requests
    assert request["prompt"] == TOKENIZER.encode(PROMPT, add_special_tokens=False) and request["n_predict"] == 20


@pytest.mark.parametrize("whole", [False, True])
def test_more_cached_tokens_than_the_prompt_has_are_no_answer(server: StandIn, whole: bool) -> None:
    fields = {"max_tokens": 3} | ({"presence_penalty": 1} if whole else {})
    server.num_cached = -1
    usage = ask(server, **fields).usage
    assert usage is not None and usage.prompt_tokens_details.cached_tokens == 0, "it is not said"
    for count in (-2, 99):
        server.num_cached = count
        with pytest.raises(ServerError):
            ask(server, **fields)


@pytest.mark.parametrize(("stop", "text"), [(["wor"], "Hello "), (["lo w"], "Hel"), (["xyz"], "Hello world")])
def test_onward_finds_stop_sequences_itself(server: StandIn, stop: list[str], text: str) -> None:
    spell(server, "Hello world")
    [choice] = ask(server, max_tokens=30, stop=stop).choices
    assert (choice.text, choice.finish_reason) == (text, "stop")
    assert all("stop" not in request for request in server.requests)


def test_an_answer_of_the_requested_length_has_the_finish_reason_length(server: StandIn) -> None:
    spell(server, "Hello world")
    [choice] = ask(server, max_tokens=5).choices
    assert (choice.text, choice.finish_reason) == ("Hello", "length")
    assert ask(server, max_tokens=0).choices[0].text == ""


@pytest.mark.parametrize("logprobs", [None, 2])
def test_characters_that_streams_swallow_arrive(server: StandIn, logprobs: int | None) -> None:
    text = "日本 ünd 🦜!"
    spell(server, text)
    [choice] = ask(server, max_tokens=60, logprobs=logprobs).choices
    assert (choice.text, choice.finish_reason) == (text, "stop")
    assert any(not request["stream"] for request in server.requests)
    if logprobs is not None:
        assert choice.logprobs is not None and len(choice.logprobs.tokens) == len(text.encode())


def test_penalties_are_computed_one_token_at_a_time_over_what_was_generated(server: StandIn) -> None:
    ask(server, max_tokens=3, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2)
    assert [request["n_predict"] for request in server.requests] == [1, 1, 1]
    assert [request.get("repeat_last_n", 0) for request in server.requests] == [0, 1, 2]
    assert server.requests[2]["samplers"][0] == "penalties"
    assert len(server.requests[2]["prompt"]) == len(server.requests[0]["prompt"]) + 2


def test_min_tokens_bans_the_end_for_as_long(server: StandIn) -> None:
    spell(server, "ab")
    [choice] = ask(server, max_tokens=9, min_tokens=4).choices
    assert choice.text == "abzz"
    assert [request["n_predict"] for request in server.requests] == [4, 5]
    assert [END, False] in server.requests[0]["logit_bias"] and not server.requests[1]["logit_bias"]


def test_a_text_continues_after_an_end_token_that_the_request_ignores(server: StandIn) -> None:
    spell(server, "ab")
    [choice] = ask(server, max_tokens=5, ignore_eos=True).choices
    assert (choice.text, choice.finish_reason) == ("ab", "length")
    assert len(server.requests) == 3


def test_choices_have_seeds_of_their_own_that_repeat(server: StandIn) -> None:
    ask(server, n=3, seed=7, temperature=1, max_tokens=2)
    seeds = {request["seed"] for request in server.requests}
    assert len(seeds) == 3
    server.requests.clear()
    ask(server, n=3, seed=7, temperature=1, max_tokens=2)
    assert {request["seed"] for request in server.requests} == seeds


@pytest.mark.parametrize("prompt", ["Say:", "für 日本"])
def test_a_prompt_is_scored_by_forcing_each_of_its_tokens(server: StandIn, prompt: str) -> None:
    [choice] = ask(server, prompt=prompt, echo=True, logprobs=2, max_tokens=0).choices
    assert choice.text == prompt and choice.logprobs is not None
    tokens = TOKENIZER.encode(prompt, add_special_tokens=False)
    first, *others = choice.logprobs.token_logprobs
    assert first is None and len(others) == len(tokens) - 1
    assert all(found in (-0.5, -1 - token / 1000) for found, token in zip(others, tokens[1:], strict=True))
    asked = [request for request in server.requests if request["n_probs"] == 2]
    assert [request["prompt"] for request in asked] == [tokens[:end] for end in range(1, len(tokens))]
    assert [request["logit_bias"][0][0] for request in asked] == tokens[1:]


def test_a_prompt_is_scored_once_for_all_choices(server: StandIn) -> None:
    answer = ask(server, echo=True, logprobs=0, max_tokens=1, n=3)
    assert len(answer.choices) == 3 and len(server.requests) == 3 + 3


def test_a_score_of_another_token_is_not_taken_for_the_one_that_was_asked_for(server: StandIn) -> None:
    server.faults = ["", "other model"]
    with pytest.raises(ServerError):
        ask(server, echo=True, logprobs=1, max_tokens=0)


CONSTRAINTS: dict[str, dict[str, Any]] = {
    "[ab]{3}c": {"regex": "[ab]{3}c"},
    "[^d]{6}": {"regex": "[^d]{6}"},  # most tokens are allowed
    "yes|no": {"choice": ["yes", "no"]},
    r'\{ ?"a" ?: ?(true|false) ?\}': {
        "json_schema": {
            "type": "object",
            "properties": {"a": {"type": "boolean"}},
            "required": ["a"],
            "additionalProperties": False,
        }
    },
}


EVERY_PATTERN: list[tuple[str, dict[str, Any]]] = [(pattern, {}) for pattern in CONSTRAINTS]
ONE_PATTERN = [("[ab]{3}c", more) for more in ({"logprobs": 1}, {"presence_penalty": 1.0}, {"n": 2})]


@pytest.mark.parametrize(
    ("pattern", "more"),
    [*EVERY_PATTERN[:1], *(pytest.param(*each, marks=pytest.mark.slow) for each in [*EVERY_PATTERN[1:], *ONE_PATTERN])],
)
def test_constraints_are_masks_for_one_token_at_a_time(server: StandIn, pattern: str, more: dict[str, Any]) -> None:
    server.faults = ["busy"]
    for choice in ask(server, max_tokens=60, **CONSTRAINTS[pattern], **more).choices:
        assert re.fullmatch(pattern, choice.text) and choice.finish_reason == "stop"
    assert all(request["n_predict"] == 1 for request in server.requests)
    assert max(len(request["logit_bias"]) for request in server.requests) <= TOKENIZER.size / 2


@pytest.mark.slow
def test_a_forced_token_is_requested_only_for_its_probability(server: StandIn) -> None:
    assert ask(server, max_tokens=60, choice=["the end"]).choices[0].text == "the end"
    assert not server.requests
    [choice] = ask(server, max_tokens=60, choice=["the end"], logprobs=1).choices
    assert choice.logprobs is not None and len(server.requests) == len(choice.logprobs.tokens)


def test_a_grammar_that_becomes_too_complex_fails_its_request_alone(
    server: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(constraint: object) -> None:
        if constraint is not None:
            raise GrammarError("too many states")

    monkeypatch.setattr(UpstreamGrammars, "mask_of", staticmethod(fail))

    async def test(backend: EmbeddedBackend) -> None:
        with pytest.raises(InvalidRequest, match="too many states"):
            await complete(backend, max_tokens=3, regex="a+")
        assert (await complete(backend, max_tokens=3)).choices[0].text

    on(server, test)


def test_allowed_tokens_are_preferred_beyond_all_others(server: StandIn) -> None:
    [choice] = ask(server, max_tokens=4, allowed_token_ids=[97, 98]).choices
    assert len(choice.text) == 4 and set(choice.text) <= {"a", "b"}
    [request] = server.requests
    assert [token for token, _ in request["logit_bias"]] == [97, 98]


@pytest.mark.parametrize("more", [{"repetition_penalty": 1.5}, {"top_n_sigma": 1, "temperature": 1}])
def test_what_is_not_allowed_is_banned_where_a_sampler_looks_at_all_logits(
    server: StandIn, more: dict[str, Any]
) -> None:
    [choice] = ask(server, max_tokens=2, allowed_token_ids=[97, 98], **more).choices
    assert len(choice.text) == 2 and set(choice.text) <= {"a", "b"}
    banned = {token for token, value in server.requests[0]["logit_bias"] if value is False}
    assert banned == set(range(TOKENIZER.size)) - {97, 98}


def test_a_choice_without_an_allowed_token_sends_no_request() -> None:
    job = make_job(allowed_tokens=(5, 6), banned_tokens=(5, 6))
    with pytest.raises(UpstreamError, match="no token is left"):
        ChoiceRun(job, 0, TOKENIZER, LlamaServer.traits, []).next_segment()


def test_onward_computes_dry_itself(server: StandIn) -> None:
    ask(server, prompt="xyzw-xyz", max_tokens=2, dry_multiplier=0.5, dry_base=2, dry_allowed_length=2)
    first, second = server.requests
    assert first["logit_bias"] == [[ord("w"), -0.5 * 2 ** (3 - 2)]]
    assert first["n_predict"] == second["n_predict"] == 1 and "dry_multiplier" not in first


def test_log_probabilities_are_passed_on(server: StandIn) -> None:
    [choice] = ask(server, max_tokens=2, logprobs=3).choices
    assert choice.logprobs is not None and choice.logprobs.token_logprobs == [-0.5, -0.5]
    assert choice.logprobs.top_logprobs is not None and choice.logprobs.top_logprobs[0] is not None
    assert len(choice.logprobs.top_logprobs[0]) in (3, 4)


@pytest.mark.parametrize("faults", [["half"], ["half", "half"], ["busy"], ["half", "down", "down"]])
def test_a_stream_that_is_lost_continues_where_it_was(server: StandIn, faults: list[str]) -> None:
    spell(server, "nothing is lost or doubled")
    server.faults = list(faults)
    [choice] = ask(server, max_tokens=40).choices
    assert (choice.text, choice.finish_reason) == ("nothing is lost or doubled", "stop")


def test_no_request_is_lost_to_a_connection_that_closes_after_a_stream(
    server: StandIn, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        for _ in range(3):
            assert (await complete(backend, max_tokens=3)).choices[0].finish_reason == "length"

    on(server, test)
    assert len(server.requests) == 3 and not [each for each in caplog.records if each.levelname == "WARNING"]


@pytest.mark.parametrize("fault", ["html", "refuse", "other model"])
def test_an_answer_that_makes_no_sense_fails_the_request_alone(server: StandIn, fault: str) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        server.faults = [fault]
        with pytest.raises(ServerError):
            await complete(backend, max_tokens=3)
        assert (await complete(backend, max_tokens=3)).choices[0].text
        assert backend.health().state == "ready"

    on(server, test)


def test_an_upstream_that_hangs_is_asked_again(server: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    spell(server, "late")
    server.faults = ["hang"]
    give_up(monkeypatch, lambda message: message.startswith(b"POST /completion ") and not server.requests)
    assert on(server, lambda backend: complete(backend, max_tokens=9)).choices[0].text == "late"
    assert len(server.requests) == 2


def test_an_upstream_that_stays_away_is_reported_and_comes_back(server: StandIn) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        server.faults = ["down"] * 40
        for _ in range(2):
            with pytest.raises(EngineStopped, match=r"was lost and does not answer\. Retry"):
                await complete(backend, max_tokens=3)
            assert backend.health().state == "recovering"
            assert backend.health().models["there"].detail.startswith("No engine of this model answers")
        server.faults.clear()
        await until(lambda: backend.health().state == "ready")
        assert (await complete(backend, max_tokens=3)).choices[0].text

    on(server, test, engine_wait=0.0)


def test_another_model_behind_the_address_ends_the_engine(server: StandIn) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        server.build, server.faults = "b2", ["half"]
        with pytest.raises(ServerError):
            await complete(backend, max_tokens=9)
        assert backend.health().state == "dead"

    on(server, test)


def test_a_client_that_leaves_ends_the_work_at_the_upstream(server: StandIn) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        server.faults = ["slow"]
        request = check_request({"model": "there", "prompt": PROMPT, "stream": True, "max_tokens": 50})
        answer = await backend.complete(request)
        async for _ in fold_chunks(answer, request):
            break
        await answer.aclose()
        await until(server.was_left.is_set)
        await until(lambda: backend.load()["there"].num_running == 0)

    on(server, test)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"tfs": 0.5}, "tfs"),
        ({"mirostat": 2}, "mirostat"),
        ({"repetition_penalty": 1.5, "logit_bias": {"5": 1}}, "repetition_penalty"),
        ({"repetition_penalty": 1.5, "dry_multiplier": 1}, "repetition_penalty"),
    ],
)
def test_what_an_upstream_does_not_have_is_refused_by_name(server: StandIn, fields: dict[str, Any], param: str) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        with pytest.raises(InvalidRequest, match="The engine behind this model does not have") as refused:
            await complete(backend, **fields)
        assert refused.value.param == param

    on(server, test)
    assert not server.requests


def on_loop(engine: UpstreamEngine) -> None:
    """Wait until the engine's event loop has run everything posted to it so far."""
    executed = threading.Event()
    engine._loop.call_soon_threadsafe(executed.set)
    assert executed.wait(PATIENCE_SECONDS)


def test_a_choice_that_is_cancelled_before_it_begins_is_forgotten(server: StandIn) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        engine = backend.served["there"].engine
        assert isinstance(engine, UpstreamEngine)
        resume = threading.Event()
        engine._loop.call_soon_threadsafe(resume.wait)  # so that the choices cannot begin before they are cancelled
        request = check_request({"model": "there", "prompt": PROMPT, "stream": True, "max_tokens": 50, "n": 4})
        answer = await backend.complete(request)
        for choice in range(4):
            engine.cancel_choice(0, choice)  # of the first job of a backend
        resume.set()
        await asyncio.to_thread(on_loop, engine)
        assert not engine.num_jobs
        await answer.aclose()

    on(server, test)


@pytest.mark.parametrize("lists_slots", [True, False])
def test_a_probe_asks_for_the_slots_or_for_a_token_where_slots_are_not_listed(
    server: StandIn, lists_slots: bool
) -> None:
    server.lists_slots = lists_slots

    async def test() -> None:
        connected = upstream_at(server.url, "llama", None, Settings())
        await connected.check_engine()
        server.faults = ["busy" if not lists_slots else "down"]
        with pytest.raises(UpstreamError) as raised:
            await connected.check_engine()
        assert raised.value.is_lost
        await connected.close()

    asyncio.run(test())
    asked = [(request["prompt"], request["n_predict"]) for request in server.requests]
    assert asked == ([] if lists_slots else [([0], 1)] * 2)


def test_choices_beyond_the_slots_wait_in_onward(server: StandIn) -> None:
    answer = ask(server, n=5, max_tokens=3)
    assert len(answer.choices) == 5 and len(server.requests) == 5


def segment(**params: Any) -> dict[str, Any]:
    return dict(request_body(Segment((1, 2), 0, 5, SamplingParams(**params), 3)))


def test_samplers_are_sent_in_the_order_of_this_api() -> None:
    common = segment(temperature=0.5, top_k=7, top_p=0.9, min_p=0.1)
    assert common["samplers"] == ["temperature", "min_p", "top_k", "top_p"]
    assert segment(top_p=0.9)["samplers"] == ["top_p"]
    assert segment(temperature=0.0)["samplers"] == ["temperature"]
    assert segment(top_p=0.0)["temperature"] == 0.0
    order = ("top_k", "xtc", "temperature")
    mixed = segment(temperature=0.5, top_k=7, filters=(("xtc_probability", 0.5),), order=order)
    assert mixed["samplers"] == ["top_k", "xtc", "temperature"]


def test_tokens_without_a_probability_are_left_out_before_samplers_that_would_count_them() -> None:
    """A banned token would have the probability 0, whose logarithm is infinite, and which is not below a threshold of
    0."""
    order = ("top_k", "typical_p", "min_p", "temperature")
    asked = {"filters": (("typical_p", 0.5),), "order": order, "top_k": 7, "temperature": 0.5}
    typical = segment(**asked)
    assert typical["samplers"] == ["min_p", "top_k", "typ_p", "temperature"] and 0 < typical["min_p"] < 1e-20
    own = segment(**asked, min_p=0.1)
    assert own["samplers"] == ["top_k", "typ_p", "min_p", "temperature"] and own["min_p"] == 0.1
    assert 0 < segment(filters=(("xtc_probability", 1.0), ("xtc_threshold", 0.0)))["xtc_threshold"] < 1e-20


def test_another_tokenizer_is_refused_at_the_start(server: StandIn) -> None:
    server.adds_space = True
    with pytest.raises(SetupError, match="its tokenizer is not that of there: pass --tokenizer"):
        compose(settings(server))


def test_an_upstream_must_be_there_and_say_where_its_tokenizer_is(server: StandIn) -> None:
    address = server.url.replace("http://", "llama+http://")
    with pytest.raises(SetupError, match="there needs a tokenizer: pass --tokenizer there=MODEL"):
        compose(Settings(model=(f"there={address}",)))
    server.close()
    with pytest.raises(SetupError, match="could not be reached"):
        compose(settings(server))


def test_the_file_that_llama_server_was_started_with_is_found_in_the_same_folder(
    server: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says the path that it was given."""
    monkeypatch.chdir(tmp_path)
    props = {"default_generation_settings": {"n_ctx": 64}, "total_slots": 2, "build_info": "b1"}
    server.described["/props"] = props | {"model_path": "own.gguf"}
    asked = Settings(model=(server.url.replace("http://", "there=llama+http://"),))
    with pytest.raises(SetupError, match=r"needs a tokenizer: .*\(own\.gguf is not found here\)"):
        compose(asked)
    server.described["/props"] = props | {"model_path": "/" + "x" * 300}  # no file can have this name
    with pytest.raises(SetupError, match=r"needs a tokenizer: .*xxx is not found here\)"):
        compose(asked)
    server.described["/props"] = props | {"model_path": "own.gguf"}
    Path("own.gguf").symlink_to(built_in_folder("storyteller") / "storyteller.gguf")
    with pytest.raises(SetupError, match="its tokenizer is not that of there"):  # storyteller's was found
        compose(asked)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("llama+http://h:1", "needs a name: pass --model NAME=llama"),
        ("x=triton+http://h:1", "triton. is not a kind of server"),
        ("x=llama+http://h:1/v1", "without a path or a password"),
        ("x=llama+http://h:1?a=b", "without a path or a password"),
        ("x=llama+http://key@h:1", "without a path or a password"),
        ("x=llama+http://h:99999", "must be http://HOST:PORT"),
        ("x=llama+http://h:one", "must be http://HOST:PORT"),
        ("x=vllm+gpu-box:8000/v1", r"The address of x must be http://HOST:PORT\.$"),
        ("x=llama+http://[::1", "must be http://HOST:PORT"),
    ],
)
def test_invalid_addresses_are_refused(model: str, words: str) -> None:
    with pytest.raises(SetupError, match=words):
        compose(Settings(model=(model,)))


def test_a_tokenizer_for_no_such_model_is_refused() -> None:
    with pytest.raises(SetupError, match="--tokenizer other=… is for a model"):
        compose(Settings(model=("toy",), tokenizer=(("other", "toy"),)))
