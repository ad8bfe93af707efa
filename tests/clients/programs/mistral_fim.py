"""The mistralai package: fim.complete and fim.stream, whole, seeded, stopped, asyncio, errors."""

import asyncio

from mistralai.client import Mistral
from mistralai.client.errors import HTTPValidationError, SDKError
from report import KEY, PROMPT, URLS, check, raises

client = Mistral(api_key="any", server_url=URLS["default"])
FIELDS = {"model": "toy", "prompt": PROMPT, "suffix": " end", "temperature": 0, "max_tokens": 12}


def text_of(events):
    return "".join(event.data.choices[0].delta.content or "" for event in events)


@check("complete: a whole text and its usage")
def whole():
    answer = client.fim.complete(**FIELDS)
    assert answer.choices[0].message.content and answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12 and answer.model == "toy"


@check("a stream is the whole text, and ends with its usage")
def stream():
    text = client.fim.complete(**FIELDS).choices[0].message.content
    events = list(client.fim.stream(**FIELDS))
    assert text_of(events) == text and events[-1].data.usage.completion_tokens == 12
    assert events[-1].data.choices[0].finish_reason == "length"


@check("random_seed, stop, min_tokens, no suffix and no limit")
def fields():
    seeded = FIELDS | {"temperature": 1, "random_seed": 3}
    assert client.fim.complete(**seeded).choices == client.fim.complete(**seeded).choices
    text = client.fim.complete(**FIELDS).choices[0].message.content
    stopped = client.fim.complete(**FIELDS | {"stop": [text[2:4]]})
    assert stopped.choices[0].message.content == text[: text.index(text[2:4])]
    plain = client.fim.complete(model="toy", prompt=PROMPT, stop="e", min_tokens=1)
    assert plain.choices[0].finish_reason in ("stop", "length")


@check("errors: 422 lists the field, an unknown model is 404, a key is required where there are keys")
def errors():
    raises(HTTPValidationError, lambda: client.fim.complete(**FIELDS | {"temperature": 7}))
    assert raises(SDKError, lambda: client.fim.complete(**FIELDS | {"model": "nothing"})).status_code == 404
    keyed = URLS["keyed"]
    raises(SDKError, lambda: Mistral(api_key="wrong", server_url=keyed).fim.complete(**FIELDS))
    assert Mistral(api_key=KEY, server_url=keyed).fim.complete(**FIELDS).choices


@check("asyncio")
def asynchronous():
    async def main():
        text = (await client.fim.complete_async(**FIELDS)).choices[0].message.content
        events = [event async for event in await client.fim.stream_async(**FIELDS)]
        assert text_of(events) == text

    asyncio.run(main())
