"""vLLM as the engine: what it is sent, and what its answers and faults become. A stand-in answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from onward.backends.embedded import EmbeddedBackend
from onward.compose import compose
from onward.compose.upstreams import upstream_at
from onward.engine.events import Decoded, Event
from onward.engine.job import ResumedChoice
from onward.engines.upstreams.base import UpstreamError
from onward.errors import InvalidRequest, ServerError, SetupError
from onward.model_files.toy import END
from onward.settings import Settings
from onward.text.assembler import TextRules
from tests.engine.harness import make_job
from tests.engines.upstreams.harness import PROMPT, ask, complete, ignores_ends_within_min_tokens, on, spell
from tests.engines.upstreams.standin import TOKENIZER, Handler, StandIn, stand_in
from tests.waiting import until


@pytest.fixture
def server() -> Iterator[StandIn]:
    with stand_in("vllm") as running:
        yield running


def test_a_completion_is_computed_there_by_token_ids(server: StandIn) -> None:
    spell(server, "日本 🦜.")
    [choice] = ask(server, max_tokens=40).choices
    assert (choice.text, choice.finish_reason) == ("日本 🦜.", "stop")
    [request] = server.requests
    assert request["model"] == "served" and request["prompt"] == TOKENIZER.encode(PROMPT, add_special_tokens=False)
    assert request["ignore_eos"] is True and request["stop_token_ids"] == [END]


def test_min_tokens_and_biases_are_passed_on(server: StandIn) -> None:
    spell(server, "ab")
    [choice] = ask(
        server, max_tokens=9, min_tokens=4, logit_bias={"7": 2}, banned_tokens=[8], presence_penalty=1
    ).choices
    assert choice.text == "abzz"
    [request] = server.requests
    assert request["min_tokens"] == 4 and request["logit_bias"] == {"7": 2.0, "8": -100.0}
    assert request["presence_penalty"] == 1 and request["max_tokens"] == 9


def test_min_tokens_does_not_ban_ends_that_are_ignored(server: StandIn) -> None:
    ignores_ends_within_min_tokens(server)
    assert [request["max_tokens"] for request in server.requests] == [6, 6, 5, 1]


def test_a_probe_asks_the_engine_for_a_token(server: StandIn) -> None:
    """Its server reports that it is healthy whatever its engine does."""

    async def test() -> None:
        connected = upstream_at(server.url, "vllm", None, Settings())
        await connected.probe()
        await connected.check_engine()
        server.faults = ["busy"]
        await connected.probe()
        with pytest.raises(UpstreamError) as raised:
            await connected.check_engine()
        assert raised.value.is_lost
        await connected.close()

    asyncio.run(test())
    assert [(request["prompt"], request["max_tokens"]) for request in server.requests] == [([0], 1)] * 2


def test_prompts_are_scored(server: StandIn) -> None:
    [choice] = ask(server, max_tokens=2, echo=True, logprobs=2).choices
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5, -0.5, -0.5, -0.5]
    assert len(server.requests) == 2 and server.requests[0]["max_tokens"] == 0
    assert len(ask(server, max_tokens=0, echo=True, logprobs=1, n=2).choices) == 2


def test_ranks_of_prompt_tokens_are_those_of_the_list_or_its_own(server: StandIn) -> None:
    def ranks(num_top: int) -> list[dict[int, int]]:
        [choice] = ask(server, prompt=[0, 1, 9], max_tokens=0, prompt_logprobs=num_top).choices
        assert server.requests[-1]["prompt_logprobs"] == server.requests[-1]["logprobs"] == num_top
        assert isinstance(choice.prompt_logprobs, list) and choice.prompt_logprobs[0] is None
        return [{token: each.rank for token, each in (entry or {}).items()} for entry in choice.prompt_logprobs[1:]]

    assert ranks(0) == [{1: 7}, {9: 7}]
    assert ranks(2) == [{1: 2, 0: 1}, {9: 1, 0: 2}]


def test_a_stream_that_is_lost_continues_where_it_was(server: StandIn) -> None:
    spell(server, "nothing is lost or doubled")
    server.faults = ["half", "busy"]
    [choice] = ask(server, max_tokens=40).choices
    assert (choice.text, choice.finish_reason) == ("nothing is lost or doubled", "stop")
    assert server.requests[-1]["max_tokens"] == 38


def test_a_job_that_another_engine_began_continues_after_its_tokens(server: StandIn) -> None:
    spell(server, "abcdef")
    prompt = TOKENIZER.encode(PROMPT, add_special_tokens=False)
    job = make_job(prompt, max_tokens=5, rules=TextRules(stops=("cd",)), logprobs=None)
    job = replace(job, resume=(ResumedChoice(tuple(b"abc")),))
    found: list[Event] = []

    async def test(backend: EmbeddedBackend) -> None:
        engine = backend.served["there"].engine
        engine.start(found.extend)
        engine.submit([job])
        await until(lambda: found and isinstance(found[-1], Decoded) and found[-1].finish_reason)

    on(server, test)
    tokens = [one.token for event in found if isinstance(event, Decoded) for one in event.tokens]
    assert bytes(tokens) == b"d" and all(isinstance(event, Decoded) for event in found)  # it was prefilled before
    [request] = server.requests
    assert request["prompt"] == [*prompt, *b"abc"] and request["max_tokens"] == 2


def test_a_score_that_is_lost_is_asked_for_again(server: StandIn) -> None:
    server.faults = ["busy"]
    [choice] = ask(server, max_tokens=2, echo=True, logprobs=2, n=1).choices
    assert choice.logprobs is not None and len(choice.logprobs.tokens) == 6


def test_a_choice_with_penalties_continues_after_a_loss_with_the_same_penalties(server: StandIn) -> None:
    server.faults = ["half"]
    server.script = lambda tokens: ord("a")
    [choice] = ask(server, max_tokens=4, frequency_penalty=0.25, presence_penalty=0.25).choices
    assert choice.text == "aaaa"
    first, *others = server.requests
    assert first["stream"] and first["frequency_penalty"] == 0.25 and "logit_bias" not in first
    assert [request["logit_bias"] for request in others] == [{"97": -0.75}, {"97": -1.0}]
    for request in others:
        assert not request["stream"] and request["max_tokens"] == 1
        assert request["frequency_penalty"] == request["presence_penalty"] == 0


def test_penalties_of_a_window_are_sent_as_biases(server: StandIn) -> None:
    server.script = lambda tokens: ord("a")
    [choice] = ask(server, max_tokens=4, presence_penalty=2, repeat_last_n=1, logit_bias={"98": 9}).choices
    assert choice.text == "abab"
    assert server.requests[1]["logit_bias"] == {"97": -2.0, "98": 9.0}
    assert server.requests[2]["logit_bias"] == {"98": 7.0}
    ask(server, max_tokens=4, presence_penalty=2, repeat_last_n=4)
    assert server.requests[-1]["stream"] and server.requests[-1]["presence_penalty"] == 2


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        pytest.param({"choice": ["yes", "no"]}, "no", marks=pytest.mark.slow),
        ({"regex": "[x-z]{3}q"}, "xxxq"),
        ({"bad_words": ["bc"]}, "abdefg"),
        ({"dry_multiplier": 100, "dry_allowed_length": 1, "dry_sequence_breakers": [], "prompt": "ce!zc"}, "\0e"),
    ],
)
def test_rules_that_depend_on_earlier_tokens_are_asked_for_token_by_token(
    server: StandIn, fields: dict[str, Any], text: str
) -> None:
    server.script = lambda tokens: ord("a") + len([token for token in tokens if token >= ord("a")]) % 26
    fields = {"prompt": "!", "max_tokens": 6, **fields}
    [choice] = ask(server, **fields).choices
    assert choice.text[:2] == text[:2] and len(choice.text) <= 6
    assert all(request["max_tokens"] == 1 and not request["stream"] for request in server.requests)


def test_masks_name_the_fewer_of_allowed_and_banned_tokens(server: StandIn) -> None:
    ask(server, max_tokens=2, allowed_token_ids=[97, 98])
    assert server.requests[-1]["allowed_token_ids"] == [97, 98] and "logit_bias" not in server.requests[-1]
    ask(server, max_tokens=2, allowed_token_ids=[*range(3, TOKENIZER.size)])
    assert "allowed_token_ids" not in server.requests[-1]
    assert server.requests[-1]["logit_bias"] == {"0": -100.0, "1": -100.0, "2": -100.0}


def test_cached_tokens_are_read_from_the_last_usage(server: StandIn) -> None:
    def cached(**fields: Any) -> int:
        usage = ask(server, **fields).usage
        assert usage is not None and usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens

    assert cached(max_tokens=3) == 0
    server.num_cached = 3
    assert cached(max_tokens=3) == cached(max_tokens=3, n=2) == 3
    assert cached(max_tokens=3, presence_penalty=1, repeat_last_n=1) == 3
    assert cached(max_tokens=2, echo=True, logprobs=1) == 0, "scoring has computed all of it"
    server.faults = ["half"]
    assert cached(max_tokens=5) == 0, "what is said of a prompt with generated tokens is not said of the prompt"


def test_a_prompt_counts_as_cached_by_the_choice_that_was_sent_first(server: StandIn) -> None:
    """The first choice computes it, and is cancelled before its usage arrives; the other one finds it in the cache."""
    server.script = lambda tokens: ord("f") if len(server.requests) == 1 else ord("g")

    def filled(handler: Any, body: dict[str, Any]) -> None:
        server.num_cached = 3
        handler._vllm(body, "")

    server.num_cached = 0
    server.faults = ["", filled]
    usage = on(
        server, lambda backend: complete(backend, max_tokens=30, n=2, stop=["f"], temperature=1), max_rows=1
    ).usage
    assert usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    ("num_prompt", "fields"),
    [
        (512, {"max_tokens": 0}),
        (512, {"max_tokens": 0, "echo": True}),
        (512, {"max_tokens": 0, "echo": True, "logprobs": 2}),
        (512, {"max_tokens": 0, "prompt_logprobs": 2}),
        (511, {"max_tokens": 1, "echo": True, "logprobs": 0}),
        (511, {"max_tokens": 1, "presence_penalty": 1, "repeat_last_n": 0}),
        (510, {"max_tokens": 2, "dry_multiplier": 1}),
    ],
)
def test_prompts_may_fill_the_context(server: StandIn, num_prompt: int, fields: dict[str, Any]) -> None:
    answer = ask(server, prompt=[0] * num_prompt, **fields)
    [choice] = answer.choices
    assert choice.finish_reason == "length"
    assert answer.usage is not None and answer.usage.total_tokens == 512
    if fields.get("echo") and "logprobs" in fields:
        assert choice.logprobs is not None and len(choice.logprobs.token_logprobs) == 512
        assert choice.logprobs.token_logprobs[1:] == [-0.5] * 511


def test_the_rank_of_a_last_token_that_is_not_listed_is_not_made_up(server: StandIn) -> None:
    def unlisted(handler: Handler, body: dict[str, Any]) -> None:
        tops = {f"token_id:{other}": -0.1 for other in range(20)}
        logprobs = {"tokens": ["token_id:99"], "token_logprobs": [-9.0], "top_logprobs": [tops]}
        handler.send_json({"choices": [{"token_ids": [99], "logprobs": logprobs, "finish_reason": "length"}]})

    server.faults = [unlisted]
    with pytest.raises(ServerError):
        ask(server, prompt=[0] * 511 + [99], max_tokens=0, prompt_logprobs=2)


def test_salts_are_passed_on(server: StandIn) -> None:
    for salt in ("a", "b"):
        ask(server, max_tokens=1, echo=True, logprobs=0, cache_salt=salt)
    salts = [request["cache_salt"] for request in server.requests]
    assert salts[0] == salts[1] != salts[2] == salts[3]
    ask(server, max_tokens=1)
    assert "cache_salt" not in server.requests[-1]


def test_max_rows_is_how_many_choices_are_sent(server: StandIn) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        engine = backend.served["there"].engine
        assert engine.info.max_rows == 2
        server.faults = ["hang"] * 2
        running = asyncio.create_task(complete(backend, n=5, max_tokens=2))
        await until(lambda: len(server.requests) == 2)
        assert engine.load.num_running == 2 and engine.load.num_waiting == 3
        server.release.set()
        assert len((await running).choices) == 5

    on(server, test, max_rows=2)


def test_max_rows_bounds_an_address_that_is_lost_at_the_start(server: StandIn) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        assert backend.served["there"].engine.info.max_rows == 4

    with stand_in("vllm") as gone:
        pass
    on([server, gone], test, max_rows=2)


@pytest.mark.parametrize(
    "fields",
    [
        {"samplers": ["top_k", "temperature"], "top_k": 3, "temperature": 2},
        {"samplers": ["temperature"], "temperature": 2, "xtc_probability": 0},
        {"samplers": ["top_k", "min_p", "top_p"], "top_k": 3, "min_p": 0.1, "top_p": 0.5, "temperature": 1},
    ],
)
def test_orders_of_samplers_that_make_no_difference_are_served(server: StandIn, fields: dict[str, Any]) -> None:
    ask(server, max_tokens=1, **fields)
    [request] = server.requests
    for name in ("top_k", "top_p", "min_p"):
        assert request[name] == fields.get(name, {"top_p": 1}.get(name, 0))


@pytest.mark.parametrize("fault", ["html", "refuse", "other model", "old version"])
def test_an_answer_that_makes_no_sense_fails_the_request_alone(server: StandIn, fault: str) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        server.faults = [fault]
        with pytest.raises(ServerError):
            await complete(backend, max_tokens=3, logprobs=1)
        assert (await complete(backend, max_tokens=3)).choices[0].text

    on(server, test)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
        ({"xtc_probability": 0.5}, "xtc_probability"),
        ({"samplers": ["top_p", "temperature"], "top_p": 0.5, "temperature": 2}, "samplers"),
        ({"temperature_last": True, "min_p": 0.1, "temperature": 2}, "samplers"),
    ],
)
def test_what_an_upstream_does_not_have_is_refused_by_name(server: StandIn, fields: dict[str, Any], param: str) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        with pytest.raises(InvalidRequest, match="The engine behind this model does not have") as refused:
            await complete(backend, **fields)
        assert refused.value.param == param

    on(server, test)


@pytest.mark.parametrize(
    "fields",
    [
        {"xtc_probability": 0.5, "xtc_threshold": 0.4},
        {"top_n_sigma": 1},
        {"typical_p": 0.5},
        {"mirostat": 2, "mirostat_tau": 1},
        {"samplers": ["top_p", "temperature"], "top_p": 0.5, "temperature": 2},
        {"top_a": 0.9, "regex": "[a-z]*", "frequency_penalty": 0.1, "logit_bias": {"7": 1}},
    ],
)
def test_other_samplers_act_where_the_probability_of_every_token_is_known(
    server: StandIn, fields: dict[str, Any]
) -> None:
    server.reports_all = True
    [choice] = ask(server, **{"max_tokens": 4, "temperature": 1, "seed": 1, "logprobs": 1, **fields}).choices
    assert choice.text == "efgh" and choice.logprobs is not None
    assert choice.logprobs.token_logprobs == pytest.approx([choice.logprobs.token_logprobs[0]] * 4)
    assert [request["max_tokens"] for request in server.requests] == [1] * 4
    assert all(request["logprobs"] == TOKENIZER.size for request in server.requests)


@pytest.mark.slow
def test_the_probabilities_of_a_vocabulary_of_152000_tokens_are_read_at_the_start(server: StandIn) -> None:
    server.reports_all, server.vocab_size = True, 151_936
    assert ask(server, max_tokens=2).choices[0].text == "ef"


def test_a_busy_server_does_not_count_as_lost(server: StandIn) -> None:
    """It is probed only once: later, the probe would wait behind completions of others."""
    server.reports_all = True

    async def test(backend: EmbeddedBackend) -> None:
        server.idle.clear()
        server.faults = ["busy"]
        assert (await complete(backend, max_tokens=2)).choices[0].text == "ef"

    on(server, test)
    assert server.num_asked_for_all == 1


def test_a_forced_token_moves_mirostats_state(server: StandIn) -> None:
    """As in the engine, which samples it."""
    server.reports_all = True
    completion = ask(server, mirostat=2, mirostat_tau=1, temperature=1, seed=1, max_tokens=4, regex="ab[a-z][a-z]")
    assert completion.choices[0].text[:2] == "ab"
    assert len(server.requests) == 4, "the probabilities of forced tokens are asked for, too"


def test_addresses_have_the_samplers_that_all_of_them_have(server: StandIn) -> None:
    server.reports_all = True

    async def test(backend: EmbeddedBackend) -> None:
        with pytest.raises(InvalidRequest, match="does not have `top_n_sigma`"):
            await complete(backend, top_n_sigma=1, temperature=1)

    with stand_in("vllm") as other:
        on([server, other], test)


@pytest.mark.parametrize("version", ["0.9.2", "0.10.1"])
def test_a_release_that_is_too_old_is_refused_at_the_start(server: StandIn, version: str) -> None:
    server.build = version
    with pytest.raises(SetupError, match=rf"is vLLM {version}, .*: 0\.10\.2 or newer is needed"):
        ask(server)


def test_a_model_without_a_tokenizer_on_this_machine_is_refused(server: StandIn) -> None:
    address = server.url.replace("http://", "vllm+http://")
    with pytest.raises(SetupError, match=r"the model that the vLLM at .* serves"):
        compose(Settings(model=(f"there={address}",)))


def test_a_folder_with_a_tokenizer_is_enough(server: StandIn, tmp_path: Path) -> None:
    vocabulary = {chr(ord("a") + index): index for index in range(26)} | {"é": 26}
    Tokenizer(models.BPE(vocab=vocabulary, merges=[])).save(str(tmp_path / "tokenizer.json"))
    address = server.url.replace("http://", "vllm+http://")
    with pytest.raises(SetupError, match="its tokenizer is not that of there"):
        compose(Settings(model=(f"there={address}",), tokenizer=(("there", str(tmp_path)),)))
