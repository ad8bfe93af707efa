"""A completion whose engine is lost continues in another one, with the same partial choices for all parameters."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from onward.api.openai.choices import ChoiceParts, usage_of
from onward.api.openai.decode import check_request
from onward.api.openai.reply import FoldedChoices
from onward.completions.answer import Delta
from onward.completions.choices import ChoiceStream
from onward.completions.filters import ContentFilters, make_filters
from onward.completions.limits import RequestLimits
from onward.completions.plan import Plan, ServedModel, plan
from onward.completions.request import CompletionRequest
from onward.engine.events import Event, Failed
from onward.engine.step import Engine
from onward.engines.book import Journal
from onward.model_files.toy import ToyTokenizer
from onward.values import ContentFilterSetting
from tests.examples import slow_but
from tests.laws.test_backend import SHAPES

from ..engine.harness import make_engine

TOKENIZER = ToyTokenizer()
MODEL = ServedModel.create("toy", TOKENIZER, TOKENIZER.size, 2048)
EXTRA_SHAPES: dict[str, dict[str, Any]] = {
    "bias and n": {"prompt": "the cat", "logit_bias": {"97": 5, "256": 4}, "n": 3, "max_tokens": 30},
    "prediction": {
        "prompt": "the cat",
        "temperature": 0.2,
        "max_tokens": 40,
        "prediction": {"type": "content", "content": "sat on the mat and sat on the mat"},
    },
    "constrained": {"prompt": "the cat", "max_tokens": 60, "n": 2, "choice": ["sat on the mat, the other cat", "🙂"]},
    "constrained, best_of": {"prompt": "the cat", "max_tokens": 30, "best_of": 3, "regex": "[a-z]{3}( the)*[0-9]?"},
    "filtered": {"prompt": "the cat", "max_tokens": 40, "logprobs": 1, "n": 2},
    "best_of, filtered": {"prompt": "the cat", "max_tokens": 30, "best_of": 3},
    "omitted": {"prompt": "the cat", "max_tokens": 40, "logprobs": 1, "n": 2},
}
FILTERS = make_filters([ContentFilterSetting("letters", ("q", "[xz]e?"), None, "stop")])
OMITTING_FILTERS = make_filters([ContentFilterSetting("letters", ("[a-m]{1,3}",), None, "omit")])


def planned(request: CompletionRequest, jobs: int = 0) -> Plan:
    return plan(request, MODEL, 0, itertools.count(jobs), RequestLimits())


def run(engine: Engine, stream: ChoiceStream, journals: dict[int, Journal], max_steps: int) -> list[Delta]:
    """Run the remaining jobs of the journals in an engine for at most `max_steps`, and return the deltas."""
    for journal in journals.values():
        rest = journal.remaining()
        if rest is not None:
            engine.add(rest)
    deltas: list[Delta] = []
    for _ in range(max_steps):
        if engine.idle:
            break
        events: list[Event] = engine.step()
        for event in events:
            journals[event.job].record(event)
        deltas += stream.accept(event for event in events if not isinstance(event, Failed))
    return deltas


def complete(request: CompletionRequest, filters: ContentFilters, cuts: list[int]) -> tuple[list[Any], list[Any]]:
    """Return partial and complete choices of a request. `cuts` are the steps after which an engine is lost, in turn."""
    work = planned(request)
    stream = ChoiceStream(work, TOKENIZER, filters)
    journals = {job.id: Journal(job) for job in work.jobs}
    deltas: list[Delta] = []
    for max_steps in [*cuts, 10_000]:
        deltas += run(make_engine(), stream, journals, max_steps)
    assert stream.done
    parts = asyncio.run(ChoiceParts(request).write(deltas))
    whole = FoldedChoices()
    whole.add(parts)
    usage = usage_of(stream.counts).to_dict()
    usage["completion_tokens_details"].pop("rejected_prediction_tokens")  # depends on the drafts
    usage["completion_tokens_details"].pop("accepted_prediction_tokens")
    by_index = sorted(parts, key=lambda part: part.index)
    return [part.to_dict() for part in by_index], [*(choice.to_dict() for choice in whole.choices()), usage]


def filters_of(shape: str) -> ContentFilters:
    if "omitted" in shape:
        return OMITTING_FILTERS
    return FILTERS if "filtered" in shape else ContentFilters()


@pytest.mark.parametrize("first", slow_but([1], [1, 2, 3]))
@pytest.mark.parametrize("shape", slow_but([*SHAPES, *EXTRA_SHAPES][::3], [*SHAPES, *EXTRA_SHAPES]))
def test_law_2_a_completion_interrupted_at_any_step_continues_with_the_same_bytes(shape: str, first: int) -> None:
    """Every third step, from `first` on."""
    fields = {"seed": 11, **SHAPES.get(shape, {}), **EXTRA_SHAPES.get(shape, {})}
    request = check_request({"model": "toy", **fields})
    filters = filters_of(shape)
    parts, whole = complete(request, filters, [])
    if filters is OMITTING_FILTERS:
        *choices, _ = whole
        assert {choice["finish_reason"] for choice in choices} == {"content_filter"}, "something is omitted"
        assert all(choice["text"] for choice in choices), "and something is not"
    for cut in range(first, 16, 3):
        assert complete(request, filters, [cut]) == (parts, whole)
    assert complete(request, filters, [3] * 20) == (parts, whole)


def test_a_request_without_a_seed_always_has_the_same_plan() -> None:
    request = check_request({"model": "toy", "prompt": ["a", "a", "b"]})
    seeds = [[job.sampling.seed for job in planned(request).jobs] for _ in range(2)]
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3, "prompts of one request differ"
    other = check_request({"model": "toy", "prompt": ["a", "a", "b"]})
    assert not set(seeds[0]) & {job.sampling.seed for job in planned(other).jobs}


def test_every_prompt_has_the_seed_of_the_request() -> None:
    request = check_request({"model": "toy", "prompt": ["a", "b"], "seed": -1})
    assert [job.sampling.seed for job in planned(request).jobs] == [2**64 - 1] * 2
