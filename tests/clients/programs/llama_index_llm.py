"""LlamaIndex OpenAILike with is_chat_model=False."""

import asyncio

from llama_index.llms.openai_like import OpenAILike
from report import PROMPT, URLS, check

llm = OpenAILike(
    model="toy",
    api_base=URLS["default"] + "/v1",
    api_key="any",
    is_chat_model=False,
    max_tokens=12,
    temperature=0,
    context_window=2048,
    max_retries=0,
)


@check("complete and stream_complete agree")
def whole():
    text = llm.complete(PROMPT).text
    assert text and list(llm.stream_complete(PROMPT))[-1].text == text


@check("log-probabilities are converted")
def logprobs():
    answer = llm.complete(PROMPT, logprobs=2)
    assert len(answer.logprobs) == 12 and all(len(each) >= 2 for each in answer.logprobs)


@check("asyncio")
def asynchronous():
    async def main():
        text = (await llm.acomplete(PROMPT)).text
        assert [part async for part in await llm.astream_complete(PROMPT)][-1].text == text

    asyncio.run(main())
