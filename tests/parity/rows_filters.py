"""finish_reason content_filter: documented by OpenAI, set by filters that the operator configures."""

from __future__ import annotations

from typing import Any

from .servers import Server
from .table import Area, choices, counts, finishes, says, text_is

AREA = Area("Content filters", "§3")
FREE: dict[str, Any] = {"ignore_eos": True, "max_tokens": 60}
WEAK = "OpenAI documents only the finish_reason; the rest is our choice."


def forced(text: str) -> dict[str, Any]:
    """A request that can only repeat one character."""
    return {"logit_bias": {str(ord(text)): 100}, "max_tokens": 9}


AREA.served(
    "filter.omit",
    "omit: flagged text is removed, finish_reason is content_filter; all tokens are counted",
    forced("z"),
    text_is("z"),
    finishes("content_filter"),
    counts(completion_tokens=9),
    on="filtered",
    weak=WEAK,
)
AREA.served(
    "filter.none",
    "text without flagged parts is not changed",
    forced("y"),
    text_is("y" * 9),
    finishes("length"),
    on="filtered",
)
AREA.served(
    "filter.echo",
    "the prompt is not filtered",
    {**forced("y"), "prompt": "quu zz", "echo": True},
    text_is("quu zz" + "y" * 9),
    finishes("length"),
    on="filtered",
    weak=WEAK,
)


@AREA.law("filter.stop", "choices that contain q…u", on="filtered", weak=WEAK)
def stop(server: Server) -> None:
    """stop: the text ends before the match, finish_reason is content_filter; tokens count to the match's end."""
    found = 0
    for seed in range(6):
        bias = {"113": 2, "117": 2, "256": -100}  # an end token is among the logprobs, and no text
        fields = {**FREE, "temperature": 1, "seed": seed, "logit_bias": bias, "logprobs": 1}
        answer = server.ask(**fields)
        assert "".join(answer.logprobs["tokens"]) == answer.text
        if answer.finish == "content_filter":
            found += 1
            billed = answer.usage["completion_tokens"]
            assert 2 <= billed - len(answer.logprobs["tokens"]) <= 5
            again = server.ask(**fields | {"max_tokens": billed - 1})
            is_shorter = again.finish == "content_filter" and again.text == answer.text  # a match within the match
            assert is_shorter or (again.finish == "length" and again.text.startswith(answer.text + "q"))
    assert found


@AREA.law("filter.stream", "the same, streamed", on="filtered", source="law 1")
def streamed(server: Server) -> None:
    """A stream has the text and the counts of the completion; no chunk contains flagged text."""
    for seed in range(4):
        fields = {**FREE, "temperature": 1, "seed": seed, "logit_bias": {"113": 2, "117": 2, "122": 3}}
        whole = server.ask(**fields)
        answer = server.stream(**fields, stream_options={"include_usage": True})
        assert answer.joined() == whole.text
        assert answer.chunks[-2]["choices"][0]["finish_reason"] == whole.finish
        assert answer.chunks[-1]["usage"]["completion_tokens"] == whole.usage["completion_tokens"]


AREA.served(
    "filter.n",
    "each choice is filtered separately",
    {**forced("z"), "n": 3},
    choices(3),
    says("three times z", lambda answer: answer.texts == ["z"] * 3),
    on="filtered",
)


@AREA.law("filter.fingerprint", "the same request to a server with and without filters", on="filtered")
def other_fingerprint(server: Server) -> None:
    """A server with filters has another fingerprint."""
    assert server.ask().json["system_fingerprint"] != "fp_toy"
