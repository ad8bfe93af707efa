"""`echo` and `logprobs`: what the response contains besides the text."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from typing import Any

from .servers import Server
from .table import Area, counts, entries, finishes, says, starts_with, text_is

AREA = Area("Echo and logprobs", "§2.7")
ECHO = "behaviour §2.6"
PROMPT = "Say this is a test"
P = len(PROMPT)
BYTES = re.compile(r"bytes:(\\x[0-9a-f]{2}|[ -~])+")


def to_bytes(token: str) -> bytes:
    """A token's bytes, as a client that knows the `bytes:` form reads them."""
    if not token.startswith("bytes:"):
        return token.encode()
    found: bytes = ast.literal_eval('b"' + token.removeprefix("bytes:").replace('"', r"\"") + '"')
    return found


def check_record(logprobs: dict[str, Any], top: int, first_null: bool) -> None:
    """Four arrays of one length; the token is in its alternatives with the very same number."""
    rows = zip(*(logprobs[key] for key in ("tokens", "token_logprobs", "top_logprobs")), strict=True)
    for position, (token, value, alternatives) in enumerate(rows):
        if first_null and position == 0:
            assert value is None and alternatives is None
            continue
        assert value <= 0 and alternatives[token] == value
        assert top <= len(alternatives) <= top + 1
        assert value <= max(alternatives.values())
        others = [number for name, number in alternatives.items() if name != token]
        assert next(iter(alternatives)) == token and others == sorted(others, reverse=True)
    offsets = logprobs["text_offset"]
    assert len(offsets) == len(logprobs["tokens"]) and offsets == sorted(offsets)


AREA.served(
    "echo",
    "echo: the text starts with the prompt",
    {"echo": True, "max_tokens": 3},
    starts_with(PROMPT),
    counts(completion_tokens=3),
    golden=(18,),
    source=ECHO,
)
AREA.served(
    "echo.only",
    "echo with max_tokens 0: the prompt and nothing else",
    {"echo": True, "max_tokens": 0},
    text_is(PROMPT),
    finishes("length"),
    counts(completion_tokens=0),
    source=ECHO,
)
AREA.served(
    "echo.tokens",
    "echo of a token prompt is its text",
    {"echo": True, "max_tokens": 0, "prompt": [97, 272, 98]},
    text_is("aéb"),
    source=ECHO,
)
AREA.served(
    "logprobs.off",
    "logprobs: the key is present, and null if the request has none",
    {},
    says("logprobs null", lambda answer: answer.choices[0]["logprobs"] is None),
    golden=(1,),
)


@AREA.law("score", '"echo": true, "logprobs": 1, "max_tokens": 0', golden=(19,), source=ECHO)
def scoring(server: Server) -> None:
    """Scoring a prompt returns its text, one entry per token, the first without a value, and offsets from 0."""
    answer = server.ask(echo=True, logprobs=1, max_tokens=0)
    logprobs = answer.logprobs
    assert answer.text == PROMPT == "".join(logprobs["tokens"])
    assert answer.finish == "length" and answer.usage["completion_tokens"] == 0
    assert logprobs["text_offset"][0] == 0
    check_record(logprobs, 1, first_null=True)


@AREA.law("score.one_more", '"prompt": [ids], "echo": true, "logprobs": 1, "max_tokens": 1', golden=(20, 21))
def one_more(server: Server) -> None:
    """With max_tokens 1, exactly one entry follows the prompt's, also if it is the end token."""
    for number in range(20):
        ids = [97 + number, 98, 32, 120 - number]
        bias = {"256": 100} if number % 2 else {}
        answer = server.ask(prompt=ids, echo=True, logprobs=1, max_tokens=1, seed=1234, logit_bias=bias)
        logprobs = answer.logprobs
        assert len(logprobs["tokens"]) == len(ids) + 1
        check_record(logprobs, 1, first_null=True)
        if bias:
            assert logprobs["tokens"][-1] == "<|endoftext|>" and answer.finish == "stop"
            assert answer.usage["completion_tokens"] == 0


@AREA.law("score.same", "the same with max_tokens 0 and 1", golden=(22,))
def zero_and_one(server: Server) -> None:
    """The prompt's scores do not depend on max_tokens."""
    length = len(server.tokens(PROMPT))
    none, one = (server.ask(echo=True, logprobs=1, max_tokens=most).logprobs for most in (0, 1))
    assert none["token_logprobs"] == one["token_logprobs"][:length]
    assert none["top_logprobs"] == one["top_logprobs"][:length]


@AREA.law("score.batch", '"prompt": four token arrays of different lengths, scored', golden=(23,))
def scored_batch(server: Server) -> None:
    """The prompts of a batch get the same scores as alone."""
    prompts = [[97 + place for place in range(length)] for length in (2, 5, 9, 40)]
    fields = {"echo": True, "logprobs": 1, "max_tokens": 1}
    batch = server.ask(prompt=prompts, **fields)
    assert [choice["logprobs"] for choice in batch.choices] == [
        server.ask(prompt=[prompt], **fields).logprobs for prompt in prompts
    ]


@AREA.law(
    "score.single_token",
    '"prompt": [97], "echo": true, "logprobs": 0, "max_tokens": 0',
    source="behaviour §2.3",
    weak="OpenAI rejects a prompt of one token with max_tokens 0, with an unknown message (§12.7); we accept it.",
)
def one_token(server: Server) -> None:
    """A prompt of one token can be scored: one entry without a value."""
    logprobs = server.ask(prompt=[97], echo=True, logprobs=0, max_tokens=0).logprobs
    assert logprobs == {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": None, "text_offset": [0]}


@AREA.law("logprobs.3", '"logprobs": 3, "max_tokens": 4', golden=(24,))
def alternatives(server: Server) -> None:
    """Offsets include the prompt, also without echo; each token has 3 alternatives, or 4 with itself."""
    logprobs = server.ask(logprobs=3, max_tokens=4).logprobs
    check_record(logprobs, 3, first_null=False)
    offsets, tokens = logprobs["text_offset"], logprobs["tokens"]
    assert offsets[0] == P
    assert [after - before for before, after in pairwise(offsets)] == [len(token) for token in tokens[:-1]]


AREA.served(
    "logprobs.0",
    "logprobs 0: tokens and log probabilities, no alternatives",
    {"logprobs": 0, "max_tokens": 3, "ignore_eos": True},
    entries(3),
    says("top_logprobs null", lambda answer: answer.logprobs["top_logprobs"] is None),
    golden=(25,),
    weak="It is unknown whether top_logprobs is null or a list in this case (§12.2); we send null.",
)
AREA.served(
    "logprobs.keys",
    "the order of the keys is tokens, token_logprobs, top_logprobs, text_offset",
    {"logprobs": 1, "max_tokens": 1},
    says("key order", lambda a: list(a.logprobs) == ["tokens", "token_logprobs", "top_logprobs", "text_offset"]),
)
AREA.served(
    "logprobs.10",
    "more than the documented 5 is not an error",
    {"logprobs": 10, "max_tokens": 1},
    says("at least 10", lambda answer: len(answer.logprobs["top_logprobs"][0]) >= 10),
    golden=(28,),
    source="behaviour §0.8",
)
AREA.served(
    "logprobs.21",
    "more than 20 is lowered to 20",
    {"logprobs": 21, "max_tokens": 1},
    says("20 or 21 keys", lambda answer: len(answer.logprobs["top_logprobs"][0]) in (20, 21)),
    source="behaviour §0.8",
)
AREA.refused(
    "logprobs.strict",
    "strict profile: more than the documented 5 is rejected",
    {"logprobs": 6},
    "Invalid 'logprobs': integer above maximum value. Expected a value <= 5, but got 6 instead.",
    param="logprobs",
    code="integer_above_max_value",
    on="strict",
    weak="The documents say 5, recordings show 20 (§0.8); strict follows the documents.",
)


@AREA.law(
    "logprobs.raw.temperature",
    '"logprobs": 5 at temperature 0 and 1.5',
    golden=(26,),
    source="behaviour §0.7",
)
def raw_of_temperature(server: Server) -> None:
    """Log probabilities are the model's: temperature and top_p do not change them."""
    seen = []
    for fields in ({"temperature": 0}, {"temperature": 1.5}, {"temperature": 1, "top_p": 0.1}, {"top_k": 1}):
        logprobs = server.ask(logprobs=5, max_tokens=1, seed=1, **fields).logprobs
        seen.append(sorted(logprobs["top_logprobs"][0].items(), key=lambda item: -item[1])[:5])
    assert all(each == seen[0] for each in seen)


@AREA.law(
    "logprobs.raw.bias",
    '"logprobs": 5, "logit_bias": {argmax: -100}',
    golden=(27,),
    source="behaviour §0.7",
)
def raw_of_bias(server: Server) -> None:
    """A bias changes the sampled tokens, not the log probabilities."""
    free = server.ask(logprobs=5, max_tokens=1).logprobs
    best = free["tokens"][0]
    banned = server.ask(logprobs=5, max_tokens=1, logit_bias={str(server.tokens(best)[0]): -100}).logprobs
    assert banned["tokens"][0] != best
    assert max(banned["top_logprobs"][0], key=banned["top_logprobs"][0].get) == best
    assert banned["top_logprobs"][0][best] == free["token_logprobs"][0]


@AREA.law(
    "logprobs.raw.penalty",
    '"logprobs": 3 with penalties',
    source="behaviour §2.7",
    weak="Known for biases only; for penalties it is assumed.",
)
def raw_of_penalty(server: Server) -> None:
    """Penalties do not change the log probabilities of the first token."""
    plain, punished = (
        server.ask(logprobs=3, max_tokens=1, **fields).logprobs
        for fields in ({}, {"frequency_penalty": 2, "presence_penalty": 2, "repetition_penalty": 5})
    )
    assert plain == punished


@AREA.law(
    "logprobs.outside",
    '"temperature": 2, "logprobs": 2, "max_tokens": 100',
    golden=(30,),
    weak="Both were seen, with and without an additional entry (§12.3); OpenAI's documents say that it is added.",
)
def outside_the_top(server: Server) -> None:
    """A sampled token that is not among the top k is added to them, as the first."""
    logprobs = server.ask(temperature=2, logprobs=2, max_tokens=100, seed=3, ignore_eos=True).logprobs
    check_record(logprobs, 2, first_null=False)
    assert {len(alternatives) for alternatives in logprobs["top_logprobs"]} >= {3}


@AREA.law("logprobs.bytes", '"prompt": "naïve 🙂" as bytes, scored', golden=(31, 32))
def partial_characters(server: Server) -> None:
    """Tokens that are parts of characters are written `bytes:\\x..`; joined, they are the bytes of the text."""
    text = "naïve 🙂 x"
    ids = list(text.encode())
    answer = server.ask(prompt=ids, echo=True, logprobs=1, max_tokens=0)
    tokens = answer.logprobs["tokens"]
    assert answer.text == text and "\ufffd" not in answer.raw.decode()
    assert b"".join(map(to_bytes, tokens)) == text.encode()
    partial = [token for token in tokens if len(to_bytes(token)) and not to_bytes(token).isascii()]
    assert len(partial) == 6 and all(BYTES.fullmatch(token) for token in partial)
    assert answer.logprobs["text_offset"][-1] == len(text) - 1


AREA.served(
    "logprobs.echo_default",
    "echo and logprobs can be combined on every model",
    {"echo": True, "logprobs": 1, "max_tokens": 0},
    entries(17),
    golden=(33,),
    source="behaviour §0.9",
    weak="gpt-3.5-turbo-instruct rejected the combination, davinci-002 accepted it; we accept it.",
)
AREA.served(
    "logprobs.end",
    "without echo the end token has no entry",
    {"logprobs": 1, "logit_bias": {"256": 100}},
    text_is(""),
    entries(0),
    weak="Seen in the stream of one model (§2.7).",
)


@AREA.law("logprobs.stop", '"logprobs": 1, "stop": …')
def stopped_records(server: Server) -> None:
    """Entries end with the text: the tokens of the stop string have none."""
    whole = server.ask(max_tokens=12, ignore_eos=True).text
    stop = whole[5:7]
    answer = server.ask(max_tokens=12, stop=stop, logprobs=1)
    assert answer.text == whole[: whole.index(stop)] == "".join(answer.logprobs["tokens"])


@AREA.law(
    "logprobs.stop_echo",
    '"echo": true, "logprobs": 1, "stop": …',
    source="behaviour §0.12",
    weak="Only inferred from the needs of lm-eval (§12.4).",
)
def stopped_records_with_echo(server: Server) -> None:
    """With echo, the tokens of the stop string have entries, at the end of the text."""
    whole = server.ask(max_tokens=12, ignore_eos=True).text
    stop = whole[3]
    answer = server.ask(max_tokens=12, stop=stop, logprobs=1, echo=True)
    generated = len(answer.logprobs["tokens"]) - len(server.tokens(PROMPT))
    assert generated == whole.index(stop) + 1
    assert answer.logprobs["text_offset"][-1] == len(answer.text)


@AREA.law(
    "as_ids",
    '"return_tokens_as_token_ids": true, "logprobs": 2, "echo": true',
    golden=(76,),
    source="behaviour §10",
)
def as_token_ids(server: Server) -> None:
    """return_tokens_as_token_ids names tokens and keys `token_id:N`; text and offsets do not change."""
    fields = {"logprobs": 2, "echo": True, "max_tokens": 4, "ignore_eos": True}
    plain, ids = server.ask(**fields), server.ask(**fields, return_tokens_as_token_ids=True)
    assert plain.text == ids.text and plain.logprobs["text_offset"] == ids.logprobs["text_offset"]
    names = ids.logprobs["tokens"] + [key for top in ids.logprobs["top_logprobs"] if top for key in top]
    assert all(re.fullmatch(r"token_id:\d+", name) for name in names)
    assert [int(name[9:]) for name in ids.logprobs["tokens"][:17]] == server.tokens(PROMPT)
