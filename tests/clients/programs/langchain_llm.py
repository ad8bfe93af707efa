"""LangChain's OpenAI(): batches, streams, several generations, asyncio."""

import asyncio

from langchain_openai import OpenAI
from report import PROMPT, URLS, check

FIELDS = {"base_url": URLS["default"] + "/v1", "api_key": "any", "model": "toy", "max_retries": 0}
llm = OpenAI(**FIELDS, temperature=0, max_tokens=12)


@check("invoke, batch and stream agree")
def whole():
    text = llm.invoke(PROMPT)
    assert text and llm.batch([PROMPT] * 3) == [text] * 3
    assert "".join(llm.stream(PROMPT)) == text


@check("generations are sliced by position: two prompts, three each")
def sliced():
    result = OpenAI(**FIELDS, n=3, best_of=3, temperature=1, max_tokens=4).generate(["aa", "bb"])
    assert [len(generations) for generations in result.generations] == [3, 3]
    assert result.llm_output["token_usage"]["prompt_tokens"] == 4


@check("its defaults: 256 tokens, temperature 0.7, logprobs, stops")
def defaults():
    assert OpenAI(**FIELDS).invoke(PROMPT, stop=["e"]) is not None
    result = OpenAI(**FIELDS, max_tokens=4, logprobs=2).generate([PROMPT])
    assert len(result.generations[0][0].generation_info["logprobs"]["tokens"]) <= 4


@check("asyncio")
def asynchronous():
    async def main():
        whole = await llm.ainvoke(PROMPT)
        assert "".join([piece async for piece in llm.astream(PROMPT)]) == whole

    asyncio.run(main())
