"""Sampling and choices."""

from __future__ import annotations

import json
from statistics import mean
from typing import Any

from tests.samplers import SAMPLERS

from .servers import BASE, COMPLETIONS, Answer, Server
from .table import Area, choices, counts, says, shown, text_is

SAMPLING = Area("Sampling", "§2.4")
CHOICES = Area("n and best_of", "§2.5")
FREE = {"ignore_eos": True}

SAMPLING.same(
    "greedy",
    "two requests with temperature 0 return the same text",
    {"max_tokens": 30},
    {"max_tokens": 30},
    golden=(42,),
)
SEEDED: dict[str, Any] = {"temperature": 1, "max_tokens": 30, "ignore_eos": True}


@SAMPLING.law("seed", '"seed": 7, 7 and 8, "temperature": 1', golden=(43,), source="behaviour §2.10")
def seeds(server: Server) -> None:
    """The same seed returns the same text, another seed another text; without a seed, texts differ."""
    texts = [server.ask(**SEEDED, seed=seed).text for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    assert server.ask(**SEEDED).text != server.ask(**SEEDED).text


SEED = "onward-seed"
SEVERAL: dict[str, Any] = {**SEEDED, "prompt": ["Once", "Once", "Twice"], "n": 2, "best_of": 3, "logprobs": 1}


@SAMPLING.law("seed.drawn", "no `seed`, three prompts; then with the header onward-seed", source="behaviour §2.10")
def drawn_seed(server: Server) -> None:
    """A response without a seed has the one that was drawn as a header, by which the same request has the same answer:
    with several prompts, candidates, as a stream, and for one prompt also as `seed`."""

    def again(fields: dict[str, Any], seed: str) -> Answer:
        body = json.dumps({**BASE, **fields}).encode()
        return server.send("POST", COMPLETIONS, body, {SEED: seed})

    first = server.ask(**SEVERAL)
    seed = first.headers[SEED]
    assert len(set(first.texts[:4])) > 2, "equal prompts have seeds of their own"
    repeated = again(SEVERAL, seed)
    assert (repeated.choices, repeated.headers[SEED]) == (first.choices, seed)
    one = server.stream(**SEEDED)
    assert server.ask(**SEEDED, seed=int(one.headers[SEED])).text == one.joined()
    assert again(SEEDED | {"stream": True}, one.headers[SEED]).joined() == one.joined()
    assert SEED not in server.ask(**SEEDED, seed=7).headers


@SAMPLING.law("seed.both", "`seed` and the header onward-seed; the header `x`", source="behaviour §2.10")
def seed_twice(server: Server) -> None:
    """The header together with a seed is refused, and so is a header that is not a seed."""
    body = json.dumps(BASE | {"seed": 7}).encode()
    assert server.send("POST", COMPLETIONS, body, {SEED: "7"}).status == 400
    for wrong in ("x", "-1", str(2**53), "", "7" * 400):
        answer = server.send("POST", COMPLETIONS, json.dumps(BASE).encode(), {SEED: wrong})
        assert (answer.status, SEED in answer.error["message"]) == (400, True)


@SAMPLING.law("seed.neighbours", '"n": 5, "temperature": 1', source="behaviour §2.10")
def samples_differ(server: Server) -> None:
    """The first tokens of a request's choices differ."""
    answer = server.ask(temperature=1.5, n=20, max_tokens=1, seed=1, **FREE)
    assert len(set(answer.texts)) > 3


for name, fields, golden in (
    ("top_p.0", {"top_p": 0}, 44),
    ("top_k.1", {"top_k": 1}, 45),
    ("min_p.1", {"min_p": 1}, 46),
):
    SAMPLING.same(
        name,
        f"{shown(fields)} samples only the most likely token",
        {"temperature": 1, "max_tokens": 30, **fields},
        {"max_tokens": 30},
        golden=(golden,),
        weak="Allowed by the schema; its effect is only inferred." if name == "top_p.0" else "",
    )
for name, sampler in SAMPLERS.items():
    if not sampler.best_only:
        continue
    SAMPLING.served(
        name,
        f"{name} leaves out unlikely tokens",
        {"temperature": 1, "max_tokens": 8, "logit_bias": {"97": 100}, **sampler.best_only},
        text_is("a" * 8),
        source="behaviour §10",
    )
SAMPLING.served(
    "xtc",
    "XTC leaves out all but the least likely of the likely tokens",
    {"temperature": 1, "max_tokens": 8, "logit_bias": {"97": 20}, "allowed_token_ids": [97, 98]}
    | {"xtc_probability": 1, "xtc_threshold": 0},
    text_is("b" * 8),
    source="behaviour §10",
)
for _version in (1, 2):
    SAMPLING.served(
        f"mirostat.{_version}",
        f"mirostat {_version} that aims at no surprise keeps the most likely token after the first ones",
        {"temperature": 1, "max_tokens": 8, "mirostat": _version, "mirostat_tau": 0, "logit_bias": {"97": 20}},
        text_is("a" * 8),
        source="behaviour §10",
    )
SAMPLING.same(
    "mirostat_mode",
    "mirostat_mode is another name for mirostat, with which top_k leaves nothing out",
    {**SEEDED, "seed": 1, "mirostat": 2, "mirostat_tau": 3},
    {**SEEDED, "seed": 1, "mirostat_mode": 2, "mirostat_tau": 3, "top_k": 1},
    source="behaviour §10",
)
SAMPLING.served(
    "samplers.unlisted",
    "samplers that are not listed do not act",
    {"temperature": 2, "max_tokens": 8, "logit_bias": {"97": 100}, "xtc_probability": 1, "samplers": ["temperature"]},
    text_is("a" * 8),
    source="behaviour §10",
)
SAMPLING.same(
    "samplers.order",
    "the order of samplers decides: a temperature after top_k leaves one token",
    {"temperature": 2, "top_k": 1, "seed": 1, "max_tokens": 30, "samplers": ["top_k", "temperature"]},
    {"max_tokens": 30},
    source="behaviour §10",
)
SAMPLING.refused(
    "samplers.penalties",
    "penalties can only be first among the samplers",
    {"samplers": ["top_k", "penalties"]},
    "Unsupported value: 'samplers' can list 'penalties' and 'dry' only first, in this order: they change logits, which "
    "the others read.",
    param="samplers",
    code="unsupported_value",
    source="behaviour §10",
)
SAMPLING.same(
    "temperature_last",
    "temperature_last is the order with the temperature after all others",
    {**SEEDED, "seed": 1, "top_p": 0.5, "temperature": 1.7, "temperature_last": True},
    {**SEEDED, "seed": 1, "top_p": 0.5, "temperature": 1.7, "samplers": ["min_p", "top_k", "top_p", "temperature"]},
    source="behaviour §10",
)
SAMPLING.served(
    "dry",
    "DRY stops the repetition of the prompt",
    {"prompt": "abcabcab", "max_tokens": 1, "allowed_token_ids": [99, 100], "logit_bias": {"99": 20}}
    | {"dry_multiplier": 100, "dry_sequence_breakers": []},
    text_is("d"),
    source="behaviour §10",
)
SAMPLING.served(
    "dry.breakers",
    "a repeated sequence of DRY does not go beyond a breaker",
    {"prompt": "abcabcab", "max_tokens": 1, "allowed_token_ids": [99, 100], "logit_bias": {"99": 20}}
    | {"dry_multiplier": 100, "dry_sequence_breakers": ["b"]},
    text_is("c"),
    source="behaviour §10",
)
SAMPLING.same(
    "repeat_last_n.0",
    "penalties that count no token do nothing",
    {**SEEDED, "seed": 1, "presence_penalty": 2, "repetition_penalty": 5, "repeat_last_n": 0},
    {**SEEDED, "seed": 1},
    source="behaviour §10",
)
SAMPLING.same(
    "repeat_last_n.all",
    "penalties count all generated tokens unless repeat_last_n limits them",
    {**SEEDED, "seed": 1, "presence_penalty": 2, "repeat_last_n": 30},
    {**SEEDED, "seed": 1, "presence_penalty": 2},
    source="behaviour §10",
)


@SAMPLING.law("repeat_last_n.1", '"presence_penalty": 2, "repeat_last_n": 1 and 30', source="behaviour §10")
def window_matters(server: Server) -> None:
    """The number of counted tokens changes what is generated."""
    answers = [server.ask(**SEEDED, seed=1, presence_penalty=2, repeat_last_n=count).text for count in (1, 30)]
    assert answers[0] != answers[1]


@SAMPLING.law("penalize_nl", '"frequency_penalty": 2, "penalize_nl": false and true', source="behaviour §10")
def newline_is_exempt(server: Server) -> None:
    """Penalties leave the token of a line break as it is, and no other; they count it by default."""
    fields = {"allowed_token_ids": [10, 97], "frequency_penalty": 2, "max_tokens": 60, "temperature": 0}
    breaks = fields | {"logit_bias": {"10": 30}}
    assert server.ask(**breaks, penalize_nl=False).text == "\n" * 60
    assert "a" in server.ask(**breaks).text
    assert "\n" in server.ask(**fields, logit_bias={"97": 30}, penalize_nl=False).text


SAMPLING.same(
    "top_k.-1",
    "top_k -1 means no limit",
    {**SEEDED, "seed": 1, "top_k": -1},
    {**SEEDED, "seed": 1},
    source="behaviour §10",
)
BIAS = "behaviour §2.8"
SAMPLING.served(
    "bias.force",
    "logit_bias 100 forces a token",
    {"logit_bias": {"97": 100}, "max_tokens": 5},
    text_is("aaaaa"),
    golden=(48,),
    source=BIAS,
)
SAMPLING.served(
    "bias.fraction",
    "a bias can be a fraction",
    {"logit_bias": {"97": 99.5}, "max_tokens": 2},
    text_is("aa"),
    source=BIAS,
)


@SAMPLING.law("bias.end", '"logit_bias": {"256": -100}', golden=(48,), source=BIAS)
def end_banned(server: Server) -> None:
    """A banned end token never ends a completion."""
    answer = server.ask(temperature=1, n=8, seed=1, max_tokens=100, logit_bias={"256": -100})
    assert {choice["finish_reason"] for choice in answer.choices} == {"length"}


for key in ("abc", "-1", "1.5", "", "١"):
    SAMPLING.refused(
        f"bias.key.{key.encode('unicode_escape').decode()}",
        "a key that is not a token id is rejected",
        {"logit_bias": {key: 1}},
        f"Invalid key in 'logit_bias': {key}. You should only be submitting non-negative integers.",
        param="logit_bias",
        golden=(49,),
        source=BIAS,
    )
SAMPLING.refused(
    "bias.large",
    "a token id outside the vocabulary is rejected",
    {"logit_bias": {"278": 1}},
    "Invalid key in 'logit_bias': 278. Maximum value is 272.",
    param="logit_bias",
    golden=(49,),
    source=BIAS,
)
for value, side in ((101, "above maximum value. Expected a value <= 100"), (-101, "below minimum value. …")):
    word = "above_max" if value > 0 else "below_min"
    SAMPLING.refused(
        f"bias.value.{value}",
        "a bias outside −100 … 100 is rejected",
        {"logit_bias": {"5": value}},
        f"Invalid 'logit_bias.5': decimal {side}".removesuffix(" …") + "…",
        param="logit_bias.5",
        code=f"decimal_{word}_value",
        source=BIAS,
        weak="The exact message is unknown (§12.7).",
    )
PENALTY = "behaviour §2.9"


@SAMPLING.law("penalty.prompt", '"frequency_penalty": 2 on a prompt full of one token', golden=(50,), source=PENALTY)
def prompt_not_counted(server: Server) -> None:
    """Penalties apply to generated tokens only, not to the prompt's."""
    fields = {"prompt": "e " * 40, "max_tokens": 1, "logprobs": 5}
    assert server.ask(**fields).choices == server.ask(**fields, frequency_penalty=2, presence_penalty=2).choices


@SAMPLING.law("penalty.repeats", "a forced token with and without penalties", source=PENALTY)
def penalties_act(server: Server) -> None:
    """Each penalty makes repetition less likely; a negative one more likely."""
    kinds = {}
    for name, fields in (
        ("none", {}),
        ("frequency", {"frequency_penalty": 2}),
        ("presence", {"presence_penalty": 2}),
        ("repetition", {"repetition_penalty": 5}),
        ("negative", {"frequency_penalty": -2}),
    ):
        answer = server.ask(**SEEDED | {"max_tokens": 60}, seed=2, logprobs=0, **fields)
        kinds[name] = len(set(answer.logprobs["tokens"]))
    assert min(kinds["frequency"], kinds["presence"], kinds["repetition"]) > kinds["none"] > kinds["negative"], kinds


# --- n, best_of -------------------------------------------------------------------------------------------------

CHOICES.served(
    "n.greedy",
    "n at temperature 0 returns the same choice n times",
    {"n": 3},
    choices(3),
    says("one text", lambda answer: len(set(answer.texts)) == 1),
    golden=(51,),
)
CHOICES.refused(
    "best_of.below",
    "best_of below n is rejected",
    {"n": 2, "best_of": 1},
    "You requested that the server return more choices than it will generate (HINT: you must set "
    "'n' (currently 2) to be at most 'best_of' (currently 1), or omit either parameter if you don't "
    "specifically want to use them.)",
    golden=(53,),
)
CHOICES.served("best_of.equal", "best_of equal to n is accepted", {"n": 2, "best_of": 2}, choices(2), golden=(54,))
CHOICES.same(
    "best_of.0",
    "best_of 0 means not set",
    {"best_of": 0, "n": 2},
    {"n": 2},
    weak="The schema's minimum is 0; its effect is not recorded.",
)
CHOICES.served(
    "best_of.billed",
    "all candidates are counted",
    {"best_of": 5, "max_tokens": 4, "temperature": 1, **FREE},
    choices(1),
    counts(completion_tokens=20, prompt_tokens=17),
)


@CHOICES.law("best_of.best", '"best_of": 6, "n": 2, "logprobs": 0, "seed": 3', golden=(54,))
def best_first(server: Server) -> None:
    """best_of returns the n candidates with the highest mean log probability, best first."""
    fields = {"temperature": 1.3, "max_tokens": 12, "seed": 3, "logprobs": 0, **FREE}
    all_of_them = server.ask(n=6, **fields)
    ranked = sorted(all_of_them.choices, key=lambda choice: -mean(choice["logprobs"]["token_logprobs"]))
    best = server.ask(n=2, best_of=6, **fields)
    assert best.texts == [choice["text"] for choice in ranked[:2]]
    assert [choice["index"] for choice in best.choices] == [0, 1]


@CHOICES.law("best_of.silent", '"best_of": 4 with and without logprobs')
def ranks_without_logprobs(server: Server) -> None:
    """best_of ranks in the same way without logprobs."""
    fields = {"temperature": 1.3, "max_tokens": 12, "seed": 3, "best_of": 4, **FREE}
    assert server.ask(**fields).texts == server.ask(**fields, logprobs=0).texts


CHOICES.refused(
    "best_of.stream",
    "best_of above n cannot be streamed",
    {"best_of": 3, "stream": True},
    "Results cannot be streamed when 'best_of' (currently 3) is greater than 'n' (currently 1): the best "
    "candidates are known only when all of them are complete.",
    param="best_of",
    weak="In 2023, one event with the complete text was seen (§12.6). We follow OpenAI's documents.",
)


@CHOICES.law("best_of.stream_equal", '"best_of": 1, "stream": true')
def equal_streams(server: Server) -> None:
    """best_of up to n is streamed as if it were absent."""
    assert server.stream(best_of=1).joined() == server.ask().text


CHOICES.refused(
    "parallel",
    "more choices than the operator allows are rejected",
    {"prompt": ["a"] * 7, "n": 3},
    "Too many parallel completions requested. You submitted 7 prompts with 3 completions each, but you can "
    "currently request up to at most a total of 20…",
    on="guarded",
    source="behaviour §2.2",
    weak="The recorded message has no number of completions per prompt, and an unbalanced parenthesis.",
)


@CHOICES.law("n.fork", '"n": 4 of a long prompt', source="behaviour §2.2")
def prompt_once(server: Server) -> None:
    """The prompt of n choices is computed and counted once."""
    before = server.metric("onward_engine_prefill_tokens_total")
    prompt = "zqj " * 60 + json.dumps(before)
    answer = server.ask(prompt=prompt, n=4, max_tokens=1)
    evaluated = server.metric("onward_engine_prefill_tokens_total") - before
    assert evaluated <= answer.usage["prompt_tokens"] == len(server.tokens(prompt))
