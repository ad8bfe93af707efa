"""The ollama package: generate, streams, suffix, log probabilities, lists, errors, asyncio."""

import asyncio

from ollama import AsyncClient, Client, ResponseError
from report import PROMPT, URLS, check, raises

client = Client(host=URLS["default"])
OPTIONS = {"temperature": 0, "num_predict": 12}


@check("generate: a whole text, its counts and durations")
def whole():
    answer = client.generate("toy", PROMPT, options=OPTIONS)
    assert answer.response and answer.done and answer.done_reason == "length" and answer.model == "toy"
    assert answer.eval_count == 12 and answer.prompt_eval_count > 0 and answer.total_duration > 0


@check("a stream is the whole text")
def stream():
    text = client.generate("toy", PROMPT, options=OPTIONS).response
    lines = list(client.generate("toy", PROMPT, options=OPTIONS, stream=True, raw=True))
    assert "".join(line.response for line in lines) == text and lines[-1].done and not lines[0].done


@check("suffix, stop, keep_alive and log probabilities")
def fields():
    text = client.generate("toy", PROMPT, options=OPTIONS, suffix=" end", keep_alive="5m").response
    stop = text[2:4]
    stopped = client.generate("toy", PROMPT, options=OPTIONS | {"stop": [stop]}, suffix=" end")
    assert stopped.response == text[: text.index(stop)] and stopped.done_reason == "stop"
    answer = client.generate("toy", PROMPT, options=OPTIONS, logprobs=True, top_logprobs=2)
    assert len(answer.logprobs) == 12 and len(answer.logprobs[0].top_logprobs) == 2


@check("list, show, ps")
def models():
    assert "toy" in [model.model for model in client.list().models]
    assert client.show("toy").capabilities == ["completion", "insert"]
    assert client.ps().models[0].expires_at is not None


@check("errors have a status and a message")
def errors():
    missing = raises(ResponseError, lambda: client.generate("nothing", PROMPT))
    assert missing.status_code == 404 and "nothing" in missing.error
    refused = raises(ResponseError, lambda: client.generate("toy", PROMPT, system="Be kind."))
    assert refused.status_code == 400 and "system" in refused.error


@check("asyncio")
def asynchronous():
    async def main():
        other = AsyncClient(host=URLS["default"])
        text = (await other.generate("toy", PROMPT, options=OPTIONS)).response
        lines = [line async for line in await other.generate("toy", PROMPT, options=OPTIONS, stream=True)]
        assert "".join(line.response for line in lines) == text

    asyncio.run(main())
