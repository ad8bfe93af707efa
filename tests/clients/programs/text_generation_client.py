"""The text-generation package: generate and generate_stream, sampled and greedy, stops, errors, asyncio."""

import asyncio

from report import KEY, PROMPT, URLS, check, raises
from text_generation import AsyncClient, Client
from text_generation.errors import ValidationError

client = Client(URLS["default"])


@check("generate: a whole text and its tokens")
def whole():
    answer = client.generate(PROMPT, max_new_tokens=12)
    assert answer.generated_text and answer.details.generated_tokens == len(answer.details.tokens) == 12
    assert answer.details.finish_reason.value == "length" and answer.details.seed is None


@check("a stream is the whole text, a token per event")
def stream():
    answer = client.generate(PROMPT, max_new_tokens=12, top_n_tokens=2)
    events = list(client.generate_stream(PROMPT, max_new_tokens=12, top_n_tokens=2))
    assert [event.token for event in events] == answer.details.tokens
    assert events[-1].generated_text == answer.generated_text and events[0].generated_text is None
    assert len(events[0].top_tokens) == 2


@check("sampling, its seed, stop sequences and the full text")
def fields():
    first = client.generate(PROMPT, do_sample=True, max_new_tokens=8)
    assert client.generate(PROMPT, do_sample=True, max_new_tokens=8, seed=first.details.seed) == first
    text = client.generate(PROMPT, max_new_tokens=12).generated_text
    stopped = client.generate(PROMPT, max_new_tokens=12, stop_sequences=[text[2:4]])
    assert stopped.generated_text == text[: text.index(text[2:4]) + 2]
    assert stopped.details.finish_reason.value == "stop_sequence"
    assert client.generate(PROMPT, max_new_tokens=4, return_full_text=True).generated_text.startswith(PROMPT)


@check("errors of the server are the package's")
def errors():
    raises(ValidationError, lambda: client.generate(PROMPT, max_new_tokens=10**6))
    raises(ValidationError, lambda: client.generate(PROMPT, truncate=5))
    keyed = Client(URLS["keyed"], headers={"authorization": f"Bearer {KEY}"})
    assert keyed.generate(PROMPT, max_new_tokens=2).generated_text


@check("asyncio")
def asynchronous():
    async def main():
        other = AsyncClient(URLS["default"])
        text = (await other.generate(PROMPT, max_new_tokens=12)).generated_text
        events = [event async for event in other.generate_stream(PROMPT, max_new_tokens=12)]
        assert events[-1].generated_text == text

    asyncio.run(main())
