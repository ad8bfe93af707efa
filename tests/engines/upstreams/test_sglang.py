"""SGLang as the engine: what it is sent, and what its answers and faults become. A stand-in answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from onward.backends.embedded import EmbeddedBackend
from onward.engines.upstreams import connection
from onward.errors import InvalidRequest, ServerError, SetupError
from onward.model_files.toy import END
from tests.engines.upstreams.harness import PROMPT, ask, complete, ignores_ends_within_min_tokens, on, spell
from tests.engines.upstreams.standin import TOKENIZER, StandIn, stand_in


@pytest.fixture
def server() -> Iterator[StandIn]:
    with stand_in("sglang") as running:
        yield running


@pytest.mark.parametrize("is_incremental", [False, True])
def test_a_completion_is_computed_there_by_token_ids(server: StandIn, is_incremental: bool) -> None:
    server.is_incremental = is_incremental
    spell(server, "日本 🦜.")
    answer = ask(server, max_tokens=40)
    [choice] = answer.choices
    assert (choice.text, choice.finish_reason) == ("日本 🦜.", "stop")
    assert answer.usage is not None and answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer.system_fingerprint is not None and answer.system_fingerprint.startswith("fp_sglang_")
    [request] = server.requests
    assert request["input_ids"] == TOKENIZER.encode(PROMPT, add_special_tokens=False)
    assert request["sampling_params"]["stop_token_ids"] == [END] and request["sampling_params"]["ignore_eos"] is False


@pytest.mark.parametrize("is_incremental", [False, True])
def test_log_probabilities_are_passed_on(server: StandIn, is_incremental: bool) -> None:
    server.is_incremental = is_incremental
    [choice] = ask(server, max_tokens=3, logprobs=2, echo=True).choices
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, *[-0.5] * 6]
    assert server.requests[0]["logprob_start_len"] == 0


@pytest.mark.parametrize("count", [-1, 99])
def test_more_cached_tokens_than_the_prompt_has_are_no_answer(server: StandIn, count: int) -> None:
    server.num_cached = count
    with pytest.raises(ServerError):
        ask(server, max_tokens=3)


def test_min_tokens_biases_and_penalties_are_passed_on(server: StandIn) -> None:
    spell(server, "ab")
    biased = {"logit_bias": {"7": 2}, "banned_tokens": [8], "presence_penalty": 1}
    [choice] = ask(server, max_tokens=9, min_tokens=4, **biased).choices
    assert choice.text == "abzz"
    sent = server.requests[0]["sampling_params"]
    assert sent["min_new_tokens"] == 4 and sent["logit_bias"]["7"] == 2.0 and sent["logit_bias"]["8"] < -1000
    assert sent["presence_penalty"] == 1


def test_min_tokens_does_not_ban_ends_that_are_ignored(server: StandIn) -> None:
    ignores_ends_within_min_tokens(server)
    sent = [request["sampling_params"]["max_new_tokens"] for request in server.requests]
    assert sent == [6, 6, 5, 1]


def test_a_stream_that_is_lost_continues_where_it_was(server: StandIn) -> None:
    spell(server, "nothing is lost or doubled")
    server.faults = ["half", "busy"]
    [choice] = ask(server, max_tokens=40).choices
    assert (choice.text, choice.finish_reason) == ("nothing is lost or doubled", "stop")


@pytest.mark.parametrize(
    ("num_prompt", "fields"),
    [
        (505, {"max_tokens": 0, "echo": True, "logprobs": 0}),
        (505, {"max_tokens": 0}),
        (504, {"max_tokens": 1}),
        (4, {"max_tokens": 501, "ignore_eos": True}),
    ],
)
def test_prompts_may_fill_the_context_that_is_left_of_its_own(
    server: StandIn, num_prompt: int, fields: dict[str, Any]
) -> None:
    answer = ask(server, prompt=[0] * num_prompt, **fields)
    assert answer.usage is not None and answer.usage.total_tokens == 505
    assert answer.choices[0].finish_reason == "length"


def test_a_choice_with_penalties_continues_after_a_loss_with_the_same_penalties(server: StandIn) -> None:
    server.faults = ["half"]
    server.script = lambda tokens: ord("a")
    assert ask(server, max_tokens=4, frequency_penalty=0.25, presence_penalty=0.25).choices[0].text == "aaaa"
    sent = [request["sampling_params"] for request in server.requests]
    assert [each.get("logit_bias") for each in sent] == [None, {"97": -0.75}, {"97": -1.0}]
    assert [each["frequency_penalty"] for each in sent] == [0.25, 0, 0]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"regex": "[x-z]{3}q"}, "xxxq"),
        ({"bad_words": ["bc"]}, "ab\0cde"),
        ({"allowed_token_ids": [97, 99]}, "aacaaa"),
        ({"allowed_token_ids": [*range(98, TOKENIZER.size)]}, "bbcdef"),
    ],
)
def test_rules_that_depend_on_earlier_tokens_are_sent_as_biases(
    server: StandIn, fields: dict[str, Any], text: str
) -> None:
    server.script = lambda tokens: ord("a") + len([token for token in tokens if token >= ord("a")]) % 26
    [choice] = ask(server, prompt="!", max_tokens=6, **fields).choices
    assert choice.text == text


def test_seeds_act_in_its_deterministic_mode(server: StandIn) -> None:
    ask(server, seed=1, max_tokens=1)  # it makes no difference where the most likely token is taken
    server.is_deterministic = True
    seeds = set()
    for seed in (1, 1, 2):
        ask(server, seed=seed, temperature=1, max_tokens=1)
        seeds.add(server.requests[-1]["sampling_params"]["sampling_seed"])
    assert len(seeds) == 2


def test_an_unhealthy_engine_is_not_ready(server: StandIn) -> None:
    server.is_unhealthy = True
    with pytest.raises(SetupError, match="status 503"):
        ask(server)


@pytest.mark.slow
def test_an_engine_that_is_busy_is_waited_for(server: StandIn) -> None:
    """Its health check waits for the engine's current step, longer than other servers may take to list their models."""
    server.idle.clear()
    later = threading.Timer(connection.PROBE_SECONDS + 1, server.idle.set)
    later.start()
    assert ask(server, max_tokens=1).choices[0].finish_reason == "length"
    later.join()


def test_penalties_that_would_be_late_are_sent_as_biases(server: StandIn) -> None:
    server.overlaps, server.script = True, lambda tokens: ord("a")
    assert ask(server, max_tokens=3, presence_penalty=2, logit_bias={"98": 9}).choices[0].text == "aba"
    sent = [request["sampling_params"] for request in server.requests]
    assert [each["logit_bias"] for each in sent] == [{"98": 9}, {"97": -2, "98": 9}, {"97": -2, "98": 7}]
    assert all(each["presence_penalty"] == 0 and each["max_new_tokens"] == 1 for each in sent)


def test_penalties_are_sent_as_biases_where_those_of_one_address_would_be_late(server: StandIn) -> None:
    with stand_in("sglang") as other:
        other.overlaps = True
        server.script = other.script = lambda tokens: ord("a")
        on([server, other], lambda backend: complete(backend, max_tokens=2, presence_penalty=2))
        sent = [request["sampling_params"] for each in (server, other) for request in each.requests]
    assert [each["presence_penalty"] for each in sent] == [0, 0]


def test_penalties_of_a_window_are_sent_as_biases(server: StandIn) -> None:
    server.script = lambda tokens: ord("a")
    fields = {"presence_penalty": 2, "repeat_last_n": 1, "logit_bias": {"98": 9}}
    assert ask(server, max_tokens=4, **fields).choices[0].text == "abab"


@pytest.mark.parametrize("fault", ["html", "refuse", "other model", "abort"])
def test_an_answer_that_makes_no_sense_fails_the_request_alone(server: StandIn, fault: str) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        server.faults = [fault]
        with pytest.raises(ServerError):
            await complete(backend, max_tokens=3)
        assert (await complete(backend, max_tokens=3)).choices[0].text

    on(server, test)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1, "temperature": 0.5}, "logprobs"),
        ({"logprobs": 1, "frequency_penalty": 1}, "logprobs"),
        ({"top_p": 0.9, "min_p": 0.1}, "top_p"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
        ({"logprobs": 1, "allowed_token_ids": [5]}, "logprobs"),
        ({"logprobs": 1, "regex": "a*"}, "logprobs"),
        ({"logprobs": 1, "bad_words": ["a"]}, "logprobs"),
        ({"logprobs": 1, "dry_multiplier": 1}, "logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"cache_salt": "a"}, "cache_salt"),
        ({"seed": 1, "temperature": 1}, "seed"),
    ],
)
def test_what_an_upstream_does_not_have_is_refused_by_name(server: StandIn, fields: dict[str, Any], param: str) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        with pytest.raises(InvalidRequest, match="The engine behind this model does not have") as refused:
            await complete(backend, **fields)
        assert refused.value.param == param

    on(server, test)
