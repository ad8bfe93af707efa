"""openai for Python, 2.x and 3.x: sync, async, streams, raw responses, retries, error classes."""

import asyncio
import json
import urllib.request
import uuid

import openai
from report import KEY, PROMPT, URLS, check, raises

BASE = URLS["default"] + "/v1"
client = openai.OpenAI(base_url=BASE, api_key="any", max_retries=0)
strict = openai.OpenAI(base_url=BASE, api_key="any", max_retries=0, _strict_response_validation=True)
GREEDY = {"model": "toy", "prompt": PROMPT, "temperature": 0}
EVERYTHING = {
    "best_of": 2,
    "echo": True,
    "frequency_penalty": 0.1,
    "logit_bias": {"50": -100},
    "logprobs": 2,
    "max_tokens": 8,
    "n": 2,
    "presence_penalty": 0.1,
    "seed": 1,
    "stop": "\n\n\n",
    "temperature": 0.7,
    "top_p": 0.9,
    "user": "u",
}


@check("a whole completion, with every parameter, alone and together")
def whole():
    completion = client.completions.create(**GREEDY)
    assert completion.object == "text_completion" and completion.id.startswith("cmpl-")
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    for name, value in EVERYTHING.items():
        extra = {"best_of": 2} if name == "n" else {}
        assert client.completions.create(**{**GREEDY, name: value, **extra}).choices
    together = client.completions.create(model="toy", prompt=PROMPT, **EVERYTHING)
    assert [choice.index for choice in together.choices] == [0, 1]
    assert all(len(c.logprobs.tokens) == len(c.logprobs.top_logprobs) for c in together.choices)
    client.completions.create(**GREEDY, suffix=" end", extra_body={"top_k": 3, "min_p": 0.1})


@check("strict response validation")
def validated():
    completion = strict.completions.create(**GREEDY, logprobs=2, max_tokens=4)
    assert completion.choices[0].logprobs.top_logprobs
    assert strict.models.list().data[0].id == "toy"
    assert strict.models.retrieve("toy").object == "model"


@check("the four prompt forms")
def prompts():
    ids = [97, 98, 99]
    for prompt, count in (("abc", 1), (["abc", "abd"], 2), (ids, 1), ([ids, ids], 2)):
        assert len(client.completions.create(model="toy", prompt=prompt, max_tokens=2).choices) == count


@check("a stream is the whole answer")
def streamed():
    whole = client.completions.create(**GREEDY, max_tokens=12)
    options = {"include_usage": True}
    chunks = list(client.completions.create(**GREEDY, max_tokens=12, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens and not chunks[-1].choices
    assert all(chunk.usage is None for chunk in chunks[:-1])
    with client.completions.create(**GREEDY, stream=True, max_tokens=1000) as stream:
        for _ in stream:
            break  # leaves in the middle


@check("asyncio: whole, stream, four at once")
def asynchronous():
    async def main():
        async with openai.AsyncOpenAI(base_url=BASE, api_key="any", max_retries=0) as client:
            texts = [(await client.completions.create(**GREEDY)).choices[0].text]
            pieces = [chunk.choices[0].text async for chunk in await client.completions.create(**GREEDY, stream=True)]
            texts.append("".join(pieces))
            four = await asyncio.gather(*(client.completions.create(**GREEDY) for _ in range(4)))
            texts += [completion.choices[0].text for completion in four]
            assert len(set(texts)) == 1

    asyncio.run(main())


@check("raw and streaming responses: headers and request ids")
def raw():
    response = client.completions.with_raw_response.create(**GREEDY)
    assert response.headers["openai-model"] == "toy" and response.headers["openai-processing-ms"].isdigit()
    completion = response.parse()
    assert completion._request_id == response.headers["x-request-id"] == response.request_id
    with client.completions.with_streaming_response.create(**GREEDY, stream=True) as response:
        lines = list(response.iter_lines())
    assert lines[-2:] == ["data: [DONE]", ""] or [line for line in lines if line][-1] == "data: [DONE]"


@check("errors have the right classes, with param and code")
def errors():
    problem = raises(openai.BadRequestError, lambda: client.completions.create(**{**GREEDY, "temperature": 9}))
    assert (problem.param, problem.code, problem.type) == (
        "temperature",
        "decimal_above_max_value",
        "invalid_request_error",
    )
    assert problem.request_id.startswith("req_")
    problem = raises(openai.NotFoundError, lambda: client.completions.create(**{**GREEDY, "model": "nope"}))
    assert problem.code == "model_not_found"
    keyed = openai.OpenAI(base_url=URLS["keyed"] + "/v1", api_key="sk-wrong-key-0000", max_retries=0)
    problem = raises(openai.AuthenticationError, lambda: keyed.completions.create(**GREEDY))
    assert problem.code == "invalid_api_key"
    right = openai.OpenAI(base_url=URLS["keyed"] + "/v1", api_key=KEY, max_retries=0)
    assert right.completions.create(**GREEDY).choices
    wrong_url = openai.OpenAI(base_url=URLS["default"] + "/nope", api_key="any", max_retries=0)
    raises(openai.NotFoundError, lambda: wrong_url.completions.create(**GREEDY))


@check("retries: twice after 429, counted in the header; none when retries are disabled")
def retries():
    name = uuid.uuid4().hex
    retrying = openai.OpenAI(base_url=f"{URLS['faults']}/retry/{name}/v1", api_key="any")
    assert retrying.completions.create(**GREEDY).choices
    with urllib.request.urlopen(f"{URLS['faults']}/seen/{name}") as seen:
        assert json.load(seen) == ["0", "1", "2"]
    stopping = openai.OpenAI(base_url=f"{URLS['faults']}/stop/{name}x/v1", api_key="any")
    problem = raises(openai.RateLimitError, lambda: stopping.completions.create(**GREEDY))
    assert problem.code == "rate_limit_exceeded"
    with urllib.request.urlopen(f"{URLS['faults']}/seen/{name}x") as seen:
        assert len(json.load(seen)) == 1


@check("an error in the middle of a stream is raised")
def broken_streams():
    for fault in ("error", "cut"):
        breaking = openai.OpenAI(base_url=f"{URLS['faults']}/{fault}/x/v1", api_key="any", max_retries=0)
        try:
            for _ in breaking.completions.create(**GREEDY, stream=True, max_tokens=1000):
                pass
        except openai.APIError as problem:
            assert fault == "cut" or problem.message == "broke"
        except Exception as problem:  # 2.x lets the transport's own exception through
            assert fault == "cut" and openai.__version__.startswith("2."), problem
        else:
            raise AssertionError(f"{fault}: no error was raised")


@check("the /openai/v1 route and its $schema")
def linked():
    other = openai.OpenAI(base_url=URLS["default"] + "/openai/v1", api_key="any", max_retries=0)
    assert other.completions.create(**GREEDY).to_dict()["$schema"].endswith("/openai/schemas/Completion.json")
