"""vLLM as the engine: what is asked of it, what becomes of its answers, and of its faults. A stand-in answers."""

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
from onward.engine.events import Decoded, Event
from onward.engine.job import ResumedChoice
from onward.errors import EngineStopped, InvalidRequest, ServerError, SetupError
from onward.model_files.toy import END
from onward.settings import Settings
from onward.text.assembler import TextRules
from tests.engine.harness import make_job
from tests.engines.upstreams.harness import PROMPT, ask, complete, on, spell
from tests.engines.upstreams.standin import TOKENIZER, StandIn, stand_in


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


def test_a_stream_that_is_lost_goes_on_where_it_was(server: StandIn) -> None:
    spell(server, "nothing is lost or doubled")
    server.faults = ["half", "busy"]
    [choice] = ask(server, max_tokens=40).choices
    assert (choice.text, choice.finish_reason) == ("nothing is lost or doubled", "stop")
    assert server.requests[-1]["max_tokens"] == 38


def test_a_job_that_another_engine_began_goes_on_behind_its_tokens(server: StandIn) -> None:
    spell(server, "abcdef")
    prompt = TOKENIZER.encode(PROMPT, add_special_tokens=False)
    job = make_job(prompt, max_tokens=5, rules=TextRules(stops=("cd",)), logprobs=None)
    job = replace(job, resume=(ResumedChoice(tuple(b"abc")),))
    found: list[Event] = []

    async def test(backend: EmbeddedBackend) -> None:
        engine = backend.served["there"].engine
        engine.start(found.extend)
        engine.submit([job])
        while not (found and isinstance(found[-1], Decoded) and found[-1].finish_reason):
            await asyncio.sleep(0.01)

    on(server, test)
    tokens = [one.token for event in found if isinstance(event, Decoded) for one in event.tokens]
    assert bytes(tokens) == b"d" and all(isinstance(event, Decoded) for event in found)  # it was prefilled before
    [request] = server.requests
    assert request["prompt"] == [*prompt, *b"abc"] and request["max_tokens"] == 2


def test_a_score_that_is_lost_is_asked_for_again(server: StandIn) -> None:
    server.faults = ["busy"]
    [choice] = ask(server, max_tokens=2, echo=True, logprobs=2, n=1).choices
    assert choice.logprobs is not None and len(choice.logprobs.tokens) == 6


def test_a_choice_with_penalties_does_not_go_on_with_other_counts(server: StandIn) -> None:
    server.faults = ["half"]
    with pytest.raises(EngineStopped):
        ask(server, max_tokens=9, frequency_penalty=1)


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
        ({"bad_words": ["no"]}, "bad_words"),
        ({"xtc_probability": 0.5}, "xtc_probability"),
        ({"samplers": ["top_k"]}, "samplers"),
    ],
)
def test_what_it_does_not_have_is_refused_by_name(server: StandIn, fields: dict[str, Any], param: str) -> None:
    async def test(backend: EmbeddedBackend) -> None:
        with pytest.raises(InvalidRequest, match="The engine behind this model does not have") as refused:
            await complete(backend, **fields)
        assert refused.value.param == param

    on(server, test)


def test_a_hub_name_is_not_a_file_here(server: StandIn) -> None:
    address = server.url.replace("http://", "vllm+http://")
    with pytest.raises(SetupError, match=r"the model that the vLLM at .* serves"):
        compose(Settings(model=(f"there={address}",)))


def test_a_folder_with_a_tokenizer_is_enough(server: StandIn, tmp_path: Path) -> None:
    vocabulary = {chr(ord("a") + index): index for index in range(26)} | {"é": 26}
    Tokenizer(models.BPE(vocab=vocabulary, merges=[])).save(str(tmp_path / "tokenizer.json"))
    address = server.url.replace("http://", "vllm+http://")
    with pytest.raises(SetupError, match="its tokenizer is not that of there"):
        compose(Settings(model=(f"there={address}",), tokenizer=(("there", str(tmp_path)),)))
