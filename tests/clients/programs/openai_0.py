"""openai for Python 0.28: the module-level calls, engines in the path, ten nulls, errors."""

import openai
from report import KEY, PROMPT, URLS, check, raises

openai.api_key = "any"
openai.api_base = URLS["default"] + "/v1"


@check("Completion.create by model and by engine")
def whole():
    by_model = openai.Completion.create(model="toy", prompt=PROMPT, temperature=0)
    by_engine = openai.Completion.create(engine="toy", prompt=PROMPT, temperature=0)
    assert by_model.choices[0].text == by_engine.choices[0].text
    assert by_model.usage.total_tokens > by_model.usage.prompt_tokens
    assert by_model.openai_id is None or isinstance(by_model.openai_id, str)
    assert isinstance(by_model.response_ms, int)


@check("a stream, and nulls for everything")
def stream():
    nulls = dict.fromkeys(
        (
            "best_of",
            "echo",
            "frequency_penalty",
            "logit_bias",
            "logprobs",
            "n",
            "presence_penalty",
            "stop",
            "suffix",
        )
    )
    whole = openai.Completion.create(model="toy", prompt=PROMPT, temperature=0, **nulls)
    chunks = list(openai.Completion.create(model="toy", prompt=PROMPT, temperature=0, stream=True, **nulls))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


@check("echo with logprobs, batches of tokens")
def scores():
    answer = openai.Completion.create(model="toy", prompt=[[97, 98], [99]], echo=True, logprobs=1, max_tokens=0)
    assert [choice.text for choice in answer.choices] == ["ab", "c"]


@check("models and engines")
def models():
    assert openai.Model.list().data[0].id == "toy"
    assert openai.Model.retrieve("toy").id == "toy"
    assert openai.Engine.list().data[0].id == "toy"


@check("errors have the right classes")
def errors():
    def ask(**fields):
        return lambda: openai.Completion.create(**{"model": "toy", "prompt": PROMPT, **fields})

    problem = raises(openai.error.InvalidRequestError, ask(temperature=9))
    assert problem.param == "temperature"
    raises(openai.error.InvalidRequestError, ask(model="nope"))
    keyed = {"api_base": URLS["keyed"] + "/v1"}
    raises(openai.error.AuthenticationError, ask(**keyed, api_key="sk-wrong-key-0000"))
    assert ask(**keyed, api_key=KEY)().choices
    raises(openai.error.RateLimitError, ask(api_base=URLS["faults"] + "/stop/old/v1"))


@check("an error in the middle of a stream is raised")
def broken():
    try:
        for _ in openai.Completion.create(
            model="toy", prompt=PROMPT, stream=True, max_tokens=1000, api_base=URLS["faults"] + "/error/x/v1"
        ):
            pass
    except openai.error.OpenAIError as problem:
        assert "broke" in str(problem)
    else:
        raise AssertionError("no error was raised")
