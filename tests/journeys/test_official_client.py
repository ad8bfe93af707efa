"""The official client against an application whose backend the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import openai
import pytest

from onward.errors import Overloaded
from onward.server.app import App
from tests.listening import listening
from tests.server.fakes import STORY, FakeBackend, Step, delta, settings
from tests.waiting import PATIENCE_SECONDS, wait_for


@contextmanager
def served(backend: FakeBackend, *keys: str) -> Iterator[str]:
    """Serve the application on a thread of this process; yields its base URL."""
    with listening(App(backend, settings(api_key=keys, access_log=False))) as url:
        yield f"{url}/v1"


def test_keys_are_required_and_accepted() -> None:
    with served(FakeBackend(), "sk-right") as url:
        with openai.OpenAI(base_url=url, api_key="sk-wrong-0123456789") as client:
            with pytest.raises(openai.AuthenticationError) as raised:
                client.completions.create(model="storyteller", prompt="x")
            assert raised.value.code == "invalid_api_key"
            assert raised.value.request_id is not None
        with openai.OpenAI(base_url=url, api_key="sk-right") as client:
            assert client.completions.create(model="storyteller", prompt="x").choices[0].text
            headers = client.completions.with_raw_response.create(model="storyteller", prompt="x").headers
            assert headers["openai-model"] == "fake-model:1"
            assert headers["content-type"] == "application/json"


def test_the_client_retries_an_overloaded_server() -> None:
    backend = FakeBackend()
    backend.error_to_raise = Overloaded(retry_after=0)
    with served(backend) as url, openai.OpenAI(base_url=url, api_key="any", max_retries=1) as client:
        with pytest.raises(openai.InternalServerError, match="currently overloaded"):
            client.completions.create(model="storyteller", prompt="x")
        assert len(backend.requests) == 2


def test_the_async_client_completes_and_streams() -> None:
    async def talk(url: str) -> tuple[str, str]:
        async with openai.AsyncOpenAI(base_url=url, api_key="any") as client:
            whole = await client.completions.create(model="storyteller", prompt="x")
            stream = await client.completions.create(model="storyteller", prompt="x", stream=True)
            return whole.choices[0].text, "".join([chunk.choices[0].text async for chunk in stream])

    with served(FakeBackend()) as url:
        assert asyncio.run(talk(url)) == (" there was a fox", " there was a fox")


def test_every_form_of_prompt_and_every_null_is_decoded() -> None:
    backend = FakeBackend()
    with served(backend) as url, openai.OpenAI(base_url=url, api_key="any") as client:
        for prompt in ("x", ["x", "y"], [1, 2], [[1], [2, 3]]):
            client.completions.create(model="storyteller", prompt=prompt, stop=None, logprobs=None, seed=None)
        assert [request.prompt for request in backend.requests] == ["x", ["x", "y"], [1, 2], [[1], [2, 3]]]


def test_a_client_that_does_not_read_delays_no_other_and_its_disconnect_is_noticed() -> None:
    tick = asyncio.Event()
    tick.set()
    flood: list[Step] = [delta("x" * 100_000), tick] * 200
    backend = FakeBackend(script_of=lambda request: list(flood) if request.stream else list(STORY))
    with served(backend) as url, httpx2.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:
        fields = {"model": "m", "prompt": "x", "stream": True}
        with client.stream("POST", "/completions", json=fields) as unread:
            assert unread.status_code == 200
            assert client.post("/completions", json={"model": "m", "prompt": "x"}).status_code == 200
            assert not backend.answers[0].closed.is_set()
        wait_for(backend.answers[0].closed.is_set)
        assert backend.answers[0].num_yielded < 200
