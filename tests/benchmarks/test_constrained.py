"""The arms of the constrained benchmark generate what they say."""

from __future__ import annotations

import json

import jsonschema  # type: ignore[import-untyped]
from benchmarks.constrained import GRAMMARS, SCHEMA, Arms, mask_costs

from onward.constraints.matcher import TokenTrie
from onward.constraints.tokens import LibraryTokens
from onward.model_files.toy import ToyTokenizer
from onward.runtimes.toy.model import ToyModel
from tests.engine.harness import make_job, run_alone


def test_every_kind_runs_and_leaves_nothing_behind() -> None:
    tokenizer = ToyTokenizer()
    arms = Arms(ToyModel(), tokenizer)
    for kind in GRAMMARS:
        assert arms.run(kind, clients=3, tokens=60, out=20) > 0
        assert arms.engine.idle


def test_the_same_choices_are_timed_with_masks_and_without() -> None:
    arms = Arms(ToyModel(), ToyTokenizer())
    ratios = arms.mask_ratios(clients=3, turns=4)
    assert len(ratios) == 4 and all(ratio > 0 for ratio in ratios)
    assert arms.engine.idle


def test_the_json_is_valid_and_mostly_forced() -> None:
    job = make_job(max_tokens=600, grammar=GRAMMARS["json"], choices=4)
    complete = [each for each in run_alone(job).choices.values() if each.finish_reason == "stop"]
    assert complete
    for choice in complete:
        jsonschema.validate(json.loads(choice.text), SCHEMA)


def test_each_kind_of_mask_is_timed() -> None:
    tokenizer = ToyTokenizer()
    tokens = LibraryTokens(
        tokenizer.size,
        tokenizer.token_bytes,
        tokenizer.is_special,
        lambda text: tokenizer.encode(text, add_special_tokens=False),
    )
    trie = TokenTrie(tokens)
    costs = mask_costs(trie, GRAMMARS["json"])
    assert costs["mask_us"] > 0 and costs["take_us"] > 0
