"""Whether a model completes passages and chooses endings: accuracy on small sets of items, scored through the API.

`data/cloze.jsonl` has passages whose last word follows from what comes before it, in the format of LAMBADA (`context`,
`continuation`); `data/choices.jsonl` beginnings with four endings each (`query`, `choices`, `gold`). Both were written
for this repository.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onward

DATA = Path(__file__).parent / "data"
CLOZE, CHOICES = DATA / "cloze.jsonl", DATA / "choices.jsonl"
_MAX_PROMPTS = 32
"""Prompts of one request."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The log-probability of a continuation, in nats, and whether each of its tokens is the most likely one."""

    logprob: float
    is_greedy: bool


Pair = tuple[str, str]
"""A context and its continuation, which begins with a space."""
Scorer = Callable[[Sequence[Pair]], list[Scored]]


def read_items(path: Path, limit: int | None = None) -> list[Any]:
    """Return the first `limit` objects of a file with one JSON object per line."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in itertools.islice(lines, limit)]


def cloze_hits(items: Sequence[Any], score: Scorer) -> list[bool]:
    """Return for each passage whether greedy sampling completes it with the word expected."""
    return [each.is_greedy for each in score([(item["context"], f" {item['continuation']}") for item in items])]


def choice_hits(items: Sequence[Any], score: Scorer) -> list[bool]:
    """Return for each beginning whether the right ending has the greatest log-probability per byte."""
    endings = [[f" {choice}" for choice in item["choices"]] for item in items]
    scores = iter(score([(item["query"], each) for item, own in zip(items, endings, strict=True) for each in own]))
    hits = []
    for item, own in zip(items, endings, strict=True):
        per_byte = [next(scores).logprob / len(each.encode()) for each in own]
        hits.append(per_byte.index(max(per_byte)) == item["gold"])
    return hits


def encoded(encode: Callable[..., list[int]], pair: Pair) -> tuple[list[int], int]:
    """Return the token ids of a pair, after the start token that the model needs, and how many continue it."""
    context, continuation = pair
    tail = encode(continuation, add_special_tokens=False)
    return [*encode(context, add_special_tokens=True), *tail], len(tail)


def scorer(client: onward.Onward) -> Scorer:
    """Return a function that scores pairs through `completions.create`."""

    def score(pairs: Sequence[Pair]) -> list[Scored]:
        found = []
        for begin in range(0, len(pairs), _MAX_PROMPTS):
            batch = pairs[begin : begin + _MAX_PROMPTS]
            prompts = [encoded(client.tokenizer.encode, pair) for pair in batch]
            answer = client.completions.create(
                prompt=[tokens for tokens, _ in prompts], max_tokens=0, echo=True, logprobs=1
            )
            found += [_scored(choice, count) for choice, (_, count) in zip(answer.choices, prompts, strict=True)]
        return found

    return score


def _scored(choice: Any, count: int) -> Scored:
    """Return the score of the last `count` tokens of a choice's prompt."""
    tokens = choice.logprobs.token_logprobs[-count:]
    greatest = [max(top.values()) for top in choice.logprobs.top_logprobs[-count:]]
    return Scored(sum(tokens), all(one >= other for one, other in zip(tokens, greatest, strict=True)))
