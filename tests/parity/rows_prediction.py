"""Predicted outputs (`prediction`): the completion does not change, and usage counts accepted tokens."""

from __future__ import annotations

from typing import Any

from .servers import ABSENT, Server
from .table import Area

AREA = Area("Predicted outputs", "§10")
SHAPE = "OpenAI's Chat API, `prediction`"
WEAK = "OpenAI has it in the Chat API only; format and messages are those of the Chat API."
FREE: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True}
SEEDED: dict[str, Any] = {**FREE, "temperature": 1, "seed": 3}
LONG: dict[str, Any] = {**SEEDED, "max_tokens": 400}
"""Long enough for drafts, which may take a small share of the time of a text, also where a busy machine makes them look
expensive."""
WRONG = "Nothing of the kind will ever be written here. " * 4


def content(text: Any) -> dict[str, Any]:
    return {"type": "content", "content": text}


def drafted(server: Server, **fields: Any) -> tuple[Any, int, int]:
    """An answer, with its counts of accepted and rejected tokens."""
    answer = server.ask(**fields)
    assert answer.status == 200, answer.raw
    found = answer.usage["completion_tokens_details"]
    return answer, found["accepted_prediction_tokens"], found["rejected_prediction_tokens"]


for name, fields in (
    ("greedy", FREE),
    ("seed", SEEDED),
    ("logprobs", {**SEEDED, "logprobs": 3, "echo": True}),
    ("choices", {**SEEDED, "n": 3}),
    ("best_of", {**SEEDED, "best_of": 3, "n": 2}),
    ("prompts", {**SEEDED, "prompt": ["Say this", "Say that"]}),
    ("tokens", {**SEEDED, "prompt": [[97, 98], [99]]}),
    ("suffix", {**SEEDED, "suffix": " the end"}),
    ("penalties", {**SEEDED, "frequency_penalty": 1.5, "presence_penalty": -1, "repetition_penalty": 1.3}),
    ("stop", {**SEEDED, "stop": ["e", " a"], "min_tokens": 5}),
    ("end", {**SEEDED, "ignore_eos": False, "logit_bias": {"256": 2}}),
    ("score", {"echo": True, "logprobs": 1, "max_tokens": 0}),
):
    AREA.same(
        f"prediction.changes_nothing.{name}",
        f"a wrong prediction changes no token ({name})",
        {**fields, "prediction": content(WRONG)},
        fields,
        source=SHAPE,
    )
for name, value in (("empty", content("")), ("empty_part", content([{"type": "text", "text": ""}]))):
    AREA.same(
        f"prediction.{name}",
        "an empty prediction means none",
        {**SEEDED, "prediction": value},
        SEEDED,
        source=SHAPE,
        weak="Not recorded.",
    )


@AREA.law("prediction.right", '"prediction": the text of the completion', source=SHAPE)
def right(server: Server) -> None:
    """A correct prediction changes no token, and usage counts the accepted tokens."""
    plain, none_accepted, none_rejected = drafted(server, **LONG)
    assert none_accepted == none_rejected == 0
    accepted = 0
    for _ in range(20):
        answer, accepted, _ = drafted(server, **LONG, prediction=content(plain.text))
        assert answer.choices == plain.choices
        assert accepted <= answer.usage["completion_tokens"] == LONG["max_tokens"]
        if accepted:
            return
    raise AssertionError("no token of a right prediction was ever drafted")


@AREA.law("prediction.parts", '"prediction": {"type": "content", "content": [{"type": "text", …}, …]}', source=SHAPE)
def parts(server: Server) -> None:
    """Parts of a prediction are joined."""
    plain = server.ask(**LONG)
    both = [{"type": "text", "text": part} for part in (plain.text[:1], plain.text[1:])]
    for _ in range(20):
        answer, accepted, _ = drafted(server, **LONG, prediction=content(both))
        assert answer.choices == plain.choices
        if accepted > 1:
            return
    raise AssertionError("the second part was never drafted")


@AREA.law(
    "prediction.stream", '"prediction": …, "stream": true, "stream_options": {"include_usage": true}', source=SHAPE
)
def stream(server: Server) -> None:
    """A stream with a prediction has the same text, one event per token, and the counts in its last chunk."""
    plain = server.ask(**SEEDED)
    fields = {**SEEDED, "prediction": content(plain.text), "stream_options": {"include_usage": True}}
    answer = server.stream(**fields)
    assert answer.joined() == plain.text
    assert len([chunk for chunk in answer.chunks if chunk["choices"]]) == 40
    found = answer.chunks[-1]["usage"]
    assert found["completion_tokens"] == 40
    assert 0 <= found["completion_tokens_details"]["accepted_prediction_tokens"] <= 40


@AREA.law("prediction.billing", '"prediction": a long text', source=SHAPE)
def billing(server: Server) -> None:
    """A prediction counts neither as prompt nor as completion, and can be longer than the context."""
    plain = server.ask(**FREE).usage
    answer, accepted, rejected = drafted(server, **FREE, prediction=content("zq " * 5000))
    usage = answer.usage
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[count] == plain[count]
    assert accepted <= 40 and rejected >= 0


@AREA.law("prediction.metrics", "GET /metrics", source="this project")
def metrics(server: Server) -> None:
    """/metrics counts drafted tokens by source and outcome."""
    text = server.send("GET", "/metrics").raw.decode()
    for source in ("prediction", "lookup"):
        for outcome in ("accepted", "rejected"):
            labels = f'model="toy",outcome="{outcome}",source="{source}"'
            assert f"onward_draft_tokens_total{{{labels}}}" in text


shape: Any
for name, shape, path, message, code in (
    ("string", "a", "", "Invalid type for 'prediction': expected an object, but got a string instead.", "invalid_type"),
    ("no_type", {"content": "a"}, ".type", "Missing required parameter: 'prediction.type'.",
     "missing_required_parameter"),
    ("no_content", {"type": "content"}, ".content", "Missing required parameter: 'prediction.content'.",
     "missing_required_parameter"),
    ("type", {"type": "file", "content": "a"}, ".type",
     "Invalid value: 'file'. Supported values are: 'content'.", "invalid_value"),
    ("content", content(5), ".content",
     "Invalid type for 'prediction.content': expected one of a string or array of objects, but got an integer instead.",
     "invalid_type"),
    ("no_parts", content([]), ".content",
     "Invalid 'prediction.content': empty array. Expected an array with minimum length 1, but got an empty array "
     "instead.", "empty_array"),
    ("part", content(["a"]), ".content[0]",
     "Invalid type for 'prediction.content[0]': expected an object, but got a string instead.", "invalid_type"),
    ("part_type", content([{"type": "image_url", "text": "a"}]), ".content[0].type",
     "Invalid value: 'image_url'. Supported values are: 'text'.", "invalid_value"),
    ("part_text", content([{"type": "text", "text": 1}]), ".content[0].text",
     "Invalid type for 'prediction.content[0].text': expected a string, but got an integer instead.", "invalid_type"),
    ("unknown", {**content("a"), "foo": 1}, ".foo", "Unknown parameter: 'prediction.foo'.", "unknown_parameter"),
):  # fmt: skip
    AREA.refused(
        f"prediction.refused.{name}",
        f"an invalid prediction is rejected ({name.replace('_', ' ')})",
        {"prediction": shape},
        message,
        param=f"prediction{path}",
        code=code,
        source=SHAPE,
        weak=WEAK,
    )
AREA.refused(
    "prediction.strict",
    "strict profile: prediction is unknown, as on OpenAI's endpoint",
    {"prediction": content("a")},
    "Unrecognized request argument supplied: prediction",
    on="strict",
    source="behaviour §2",
)
AREA.served(
    "prediction.lenient",
    "lenient profile: unknown fields of a prediction are ignored",
    {"prediction": {**content("a"), "foo": 1}, "model": ABSENT},
    on="lenient",
    source="behaviour W25",
)
