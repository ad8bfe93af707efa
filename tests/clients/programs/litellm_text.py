"""litellm with text-completion-openai (and so DSPy's model_type="text")."""

import asyncio

import litellm
from report import PROMPT, URLS, check

litellm.suppress_debug_info = True
FIELDS = {"model": "text-completion-openai/toy", "api_base": URLS["default"] + "/v1", "api_key": "any"}


@check("text_completion, whole and streamed")
def whole():
    text = litellm.text_completion(**FIELDS, prompt=PROMPT, temperature=0, max_tokens=12).choices[0].text
    chunks = litellm.text_completion(**FIELDS, prompt=PROMPT, temperature=0, max_tokens=12, stream=True)
    assert text and "".join(chunk.choices[0].text or "" for chunk in chunks) == text


@check("token arrays, batches, echo, logprobs")
def forms():
    assert litellm.text_completion(**FIELDS, prompt=[97, 98], max_tokens=2).choices
    answer = litellm.text_completion(**FIELDS, prompt=["a", "b"], max_tokens=2, logprobs=1, n=1)
    assert len(answer.choices) == 2
    echoed = litellm.text_completion(**FIELDS, prompt="ab", max_tokens=2, echo=True)
    assert echoed.choices[0].text.startswith("ab")


@check("asyncio")
def asynchronous():
    async def main():
        answer = await litellm.atext_completion(**FIELDS, prompt=PROMPT, max_tokens=4)
        assert answer.usage.total_tokens > 0

    asyncio.run(main())


@check("a rejected request raises BadRequestError")
def refused():
    try:
        litellm.text_completion(**FIELDS, prompt=PROMPT, n=0, num_retries=0)
    except litellm.BadRequestError as problem:
        assert "below minimum value" in str(problem)
    else:
        raise AssertionError("no error was raised")
