"""Token ids in requests and answers: which tokens may be generated, which end the completion."""

from __future__ import annotations

from .servers import Server
from .table import Area, counts, finishes, says, text_is

TOKENS = Area("Token ids", "§10")
GREEDY = {"prompt": "aaaa", "max_tokens": 6, "ignore_eos": True}

TOKENS.served(
    "allowed.one",
    "only allowed tokens are generated",
    {"allowed_token_ids": [122], "max_tokens": 3, "temperature": 1},
    text_is("zzz"),
)
TOKENS.served(
    "allowed.ends",
    "the end token ends the completion where it is allowed",
    {"allowed_token_ids": [256], "max_tokens": 3},
    text_is(""),
    finishes("stop"),
)
TOKENS.served(
    "stop_token_ids",
    "a stop token ends the completion, also with ignore_eos, and is neither text nor counted",
    {"logit_bias": {"122": 100}, "stop_token_ids": [122], "ignore_eos": True},
    text_is(""),
    finishes("stop"),
    counts(completion_tokens=0),
)
TOKENS.served(
    "banned",
    "a banned token is never generated, whatever its bias",
    {"logit_bias": {"122": 100, "121": 90}, "banned_tokens": [122], "max_tokens": 2, "ignore_eos": True},
    text_is("yy"),
)
TOKENS.served(
    "bad_words",
    "the last token of a bad word is banned after the others",
    {"allowed_token_ids": [120, 121, 122], "logit_bias": {"121": 50}, "bad_words": ["yyx", "yyy"], "max_tokens": 3},
    text_is("yyz"),
)
TOKENS.served(
    "bad_words.space",
    "a bad word is banned with and without a space before it, whatever the numbers of their tokens",
    {"allowed_token_ids": [261, 120], "logit_bias": {"261": 50}, "bad_words": ["the"], "max_tokens": 3},
    text_is("xxx"),
    source="docs.vllm.ai, SamplingParams.bad_words",
)
TOKENS.served(
    "ban_eos_token",
    "the end token is never generated",
    {"logit_bias": {"256": 100, "122": 90}, "ban_eos_token": True, "max_tokens": 3},
    text_is("zzz"),
    finishes("length"),
)
TOKENS.served(
    "return_token_ids",
    "return_token_ids returns the ids of the prompt and of the completion, with the end token",
    {"prompt": "ab", "logit_bias": {"256": 100}, "return_token_ids": True},
    text_is(""),
    says(
        "prompt_token_ids [97, 98] and token_ids [256]",
        lambda answer: (answer.choices[0]["prompt_token_ids"], answer.choices[0]["token_ids"]) == ([97, 98], [256]),
    ),
)
TOKENS.served(
    "return_token_ids.stop",
    "those of a stop string are among them; logprobs and usage leave them out",
    {"prompt": "ab", "allowed_token_ids": [122], "stop": "zz", "return_token_ids": True, "logprobs": 0},
    text_is(""),
    counts(completion_tokens=0),
    says(
        "token_ids [122, 122], no logprobs",
        lambda answer: answer.choices[0]["token_ids"] == [122, 122] and answer.logprobs["tokens"] == [],
    ),
)
TOKENS.refused(
    "prompt_logprobs.stream",
    "prompt_logprobs are not streamed",
    {"prompt_logprobs": 1, "stream": True},
    "Setting 'prompt_logprobs' and 'stream' at the same time is not supported.…",
    param="prompt_logprobs",
)
TOKENS.same(
    "truncate_prompt_tokens",
    "truncate_prompt_tokens keeps the last tokens of a prompt",
    {**GREEDY, "prompt": "xyz" * 10 + "abcd", "truncate_prompt_tokens": 4},
    {**GREEDY, "prompt": "abcd"},
)
TOKENS.served(
    "truncate_prompt_tokens.-1",
    "-1 keeps what the context has room for",
    {"prompt": "x" * 5000, "truncate_prompt_tokens": -1, "max_tokens": 48, "ignore_eos": True},
    counts(prompt_tokens=2000, completion_tokens=48),
)
for name in ("stop_token_ids", "allowed_token_ids", "banned_tokens"):
    TOKENS.refused(
        f"{name}.large",
        f"{name}: a token outside the vocabulary is rejected",
        {name: [5, 273]},
        f"Invalid '{name}[1]': integer above maximum value. Expected a value <= 272, but got 273 instead.",
        param=f"{name}[1]",
        code="integer_above_max_value",
    )
    TOKENS.refused(
        f"{name}.negative",
        f"{name}: a negative token is rejected",
        {name: [5, -1]},
        f"Invalid '{name}[1]': integer below minimum value. Expected a value >= 0, but got -1 instead.",
        param=f"{name}[1]",
        code="integer_below_min_value",
    )
TOKENS.refused(
    "allowed.none_left",
    "a request that leaves no token is rejected before it is computed",
    {"allowed_token_ids": [5, 6], "banned_tokens": [5, 6]},
    "No token would be left to generate: 'allowed_token_ids' without…",
    param="allowed_token_ids",
)


@TOKENS.law("return_token_ids.stream", '"return_token_ids": true in a stream', source="behaviour §4")
def streamed_ids(server: Server) -> None:
    """The token ids of a stream's chunks joined are those of the whole answer; the prompt's come once per choice."""
    fields = {"n": 2, "temperature": 1, "seed": 3, "max_tokens": 20, "return_token_ids": True}
    whole = server.ask(**fields)
    chunks = [chunk for chunk in server.stream(**fields).chunks if chunk["choices"]]
    for choice in whole.choices:
        parts = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
        prompts = [part["prompt_token_ids"] for part in parts if "prompt_token_ids" in part]
        assert prompts == [choice["prompt_token_ids"]]


@TOKENS.law("prompt_logprobs", '"prompt_logprobs": 2 with echo and logprobs', source="behaviour §10")
def scored_prompt(server: Server) -> None:
    """Its numbers are those of the echoed prompt, by token id, with ranks and texts; null for the first token."""
    answer = server.ask(prompt="abc", prompt_logprobs=2, echo=True, logprobs=2, max_tokens=0, n=2)
    for choice in answer.choices:
        first, *entries = choice["prompt_logprobs"]
        assert first is None and [next(iter(entry)) for entry in entries] == ["98", "99"]
        for index, entry in enumerate(entries, 1):
            logprobs = {each["decoded_token"]: each["logprob"] for each in entry.values()}
            assert logprobs == choice["logprobs"]["top_logprobs"][index]
            assert {1, 2} <= {each["rank"] for each in entry.values()}
