"""/apply-template: a conversation as the prompt that the model's own chat template makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onward.model_files.toy import ToyTokenizer
from tests.api.served import post, toy_app
from tests.server.fakes import Call, in_loop

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TURNS = [{"role": "system", "content": "Be <b>brief</b>."}, {"role": "user", "content": "Hé?"}]
PROMPT = "<|system|>Be <b>brief</b>.<|endoftext|><|user|>Hé?<|endoftext|>"


@pytest.fixture
def instruct(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy has a template."""
    monkeypatch.setattr(ToyTokenizer, "chat_template", TEMPLATE)


@pytest.mark.usefixtures("instruct")
@in_loop
async def test_a_conversation_becomes_the_prompt_of_the_models_template() -> None:
    async with toy_app() as app:
        assert (await post(app, "/apply-template", messages=TURNS)).json == {"prompt": PROMPT + "<|assistant|>"}
        closed = await post(app, "/m/toy/apply-template", messages=TURNS, add_generation_prompt=False)
        assert closed.json == {"prompt": PROMPT}
        assert (await Call(app, "GET", "/tokenizer_info").done()).json["chat_template"] == TEMPLATE
        assert (await Call(app, "GET", "/props").done()).json["chat_template"] == TEMPLATE


@pytest.mark.usefixtures("instruct")
@pytest.mark.parametrize("adds_bos", [True, False])
def test_a_start_token_that_is_added_to_every_text_is_not_written(
    adds_bos: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in llama.cpp. Otherwise the prompt would have it twice."""
    monkeypatch.setattr(ToyTokenizer, "bos_token", "<|fim_pad|>")
    monkeypatch.setattr(ToyTokenizer, "implicit_prefix", lambda self, *, add_special_tokens: int(adds_bos))

    async def test() -> None:
        async with toy_app() as app:
            prompt = (await post(app, "/apply-template", messages=TURNS, add_generation_prompt=False)).json["prompt"]
        assert prompt == ("" if adds_bos else "<|fim_pad|>") + PROMPT

    asyncio.run(test())


WRONG: dict[str, Any] = {
    "nothing": None,
    "a text": "Hi",
    "a list of texts": ["Hi"],
    "a turn without content": [{"role": "user"}],
    "a turn with more": [{"role": "user", "content": "Hi", "name": "Lily"}],
    "content that is no text": [{"role": "user", "content": [{"type": "text"}]}],
}


@pytest.mark.usefixtures("instruct")
@in_loop
async def test_what_is_not_a_conversation_is_refused() -> None:
    async with toy_app() as app:
        for name, messages in WRONG.items():
            call = await post(app, "/apply-template", messages=messages)
            assert (call.status, call.error["param"]) == (400, "messages"), name
        call = await post(app, "/apply-template", messages=TURNS, tools=[])
        assert call.status == 400 and "tools" in call.error["message"]


@in_loop
async def test_a_model_without_a_template_says_so() -> None:
    async with toy_app() as app:
        call = await post(app, "/apply-template", messages=TURNS)
        assert (call.status, "no chat template" in call.error["message"]) == (400, True)
        assert (await Call(app, "GET", "/tokenizer_info").done()).json["chat_template"] is None


@in_loop
async def test_a_template_that_refuses_is_an_error_of_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToyTokenizer, "chat_template", "{{ raise_exception('System role not supported') }}")
    async with toy_app() as app:
        call = await post(app, "/apply-template", messages=TURNS)
        assert (call.status, call.error["param"]) == (400, "messages")
        assert call.error["message"] == (
            "The model's chat template refuses the conversation: System role not supported."
        )
