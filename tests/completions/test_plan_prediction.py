"""Predicted outputs: their tokens in jobs, their counts in usage, and no effect on the completion."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.api.openai.choices import usage_of as usage_of_counts
from onward.api.openai.decode import check_request
from onward.api.openai.reply import FoldedChoices
from onward.api.openai.response import Completion, Usage
from onward.backends.embedded import EmbeddedBackend
from onward.completions.choices import ChoiceStream
from onward.completions.filters import ContentFilters, make_filters
from onward.completions.limits import RequestLimits
from onward.completions.plan import Plan, ServedModel, plan
from onward.compose import compose
from onward.engine.events import Decoded, Prefilled
from onward.engine_load import DraftCounts
from onward.model_files.toy import END, ToyTokenizer
from onward.sampling.outputs import Sampled
from onward.settings import Settings
from onward.values import ContentFilterSetting
from tests.examples import examples, slow_but
from tests.laws.test_backend import SHAPES

from .. import narrowing
from ..toy_backend import ask, ask_stream, complete, let_steps_count_the_same, on_toy, settle, toy_engine

TOY = ToyTokenizer()
MODEL = ServedModel("toy", TOY, TOY.size, 64, None)


def content(text: str) -> dict[str, Any]:
    return {"type": "content", "content": text}


def planned(*, model: ServedModel = MODEL, **fields: Any) -> Plan:
    return plan(check_request({"model": "toy", "prompt": "a", **fields}), model, 0, count(), RequestLimits(100))


def predictions(**fields: Any) -> list[tuple[int, ...]]:
    return [job.prediction for job in planned(**fields).jobs]


def test_a_job_has_the_tokens_of_the_prediction() -> None:
    assert predictions(prediction=content("once upon")) == [tuple(TOY.encode("once upon", add_special_tokens=False))]
    assert predictions() == predictions(prediction=None) == predictions(prediction=content("")) == [()]


def test_a_prediction_applies_to_every_prompt() -> None:
    first, second = predictions(prompt=["a", "b"], n=2, prediction=content("the cat"))
    assert first == second != ()


def test_a_prediction_has_no_start_token() -> None:
    class StartingTokenizer(ToyTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [256] * add_special_tokens + super().encode(text, add_special_tokens=add_special_tokens)

    model = replace(MODEL, tokenizer=StartingTokenizer())
    assert predictions(model=model, prediction=content("xy")) == [(120, 121)]


def test_a_request_that_generates_nothing_has_no_prediction() -> None:
    assert predictions(max_tokens=0, echo=True, logprobs=1, prediction=content("abc")) == [()]


def test_a_long_prediction_is_truncated_to_the_context_length() -> None:
    assert predictions(prediction=content("x" * 1000)) == [(120,) * 64]


def test_tokens_outside_the_vocabulary_are_left_out() -> None:
    """A tokenizer may have more tokens than its model has logits."""
    model = replace(MODEL, vocab_size=120)
    assert predictions(model=model, prediction=content("axbyc")) == [(97, 98, 99)]


def test_a_prediction_is_not_part_of_the_prompt_or_the_context() -> None:
    with_it, without = planned(max_tokens=63, prediction=content("x" * 50)), planned(max_tokens=63)
    assert [each.num_prompt_tokens for plan in (with_it, without) for each in plan.prompts] == [1, 1]


# --- usage -----------------------------------------------------------------------------------------------------


def decoded(job: int, choice: int, text: str, accepted: int, rejected: int, *, last: bool = True) -> Decoded:
    tokens = [Sampled(ord(each), -1.0, ()) for each in text]
    return Decoded(job, choice, tokens, "length" if last else None, accepted, rejected)


COUNTS = {(0, 0): (5, 1), (0, 1): (0, 2), (1, 0): (7, 0), (1, 1): (0, 0)}


def usage_of(stream: ChoiceStream, *events: Prefilled | Decoded) -> Usage:
    stream.accept(events)
    return usage_of_counts(stream.counts)


def details(usage: Usage) -> tuple[int, int]:
    found = usage.completion_tokens_details
    return found.accepted_prediction_tokens, found.rejected_prediction_tokens


def stream_of(filters: ContentFilters | None = None, **fields: Any) -> ChoiceStream:
    return ChoiceStream(planned(**fields), TOY, filters)


def test_usage_is_the_sum_over_all_choices_of_all_prompts() -> None:
    stream = stream_of(prompt=["a", "b"], n=2)
    usage = usage_of(stream, *(decoded(*where, "ninetoken", *counts) for where, counts in COUNTS.items()))
    assert details(usage) == (12, 3)
    assert usage.completion_tokens == 36


def test_counts_of_a_choice_are_cumulative() -> None:
    stream = stream_of()
    assert details(usage_of_counts(stream.counts)) == (0, 0)
    assert details(usage_of(stream, decoded(0, 0, "four", 3, 0, last=False))) == (3, 0)
    assert details(usage_of(stream, decoded(0, 0, "tw", 4, 2, last=False), decoded(0, 0, "o", 4, 5))) == (4, 5)


def test_candidates_that_are_not_returned_are_counted() -> None:
    stream = stream_of(best_of=3)
    usage = usage_of(stream, *(decoded(0, choice, "ab", 1, choice) for choice in range(3)))
    assert details(usage) == (3, 3)


def test_accepted_tokens_are_at_most_those_of_the_completion() -> None:
    """A predicted end token is sampled, but does not count as accepted."""
    event = Decoded(0, 0, [*decoded(0, 0, "abc", 0, 0).tokens, Sampled(END, -1.0, ())], "stop", 4, 0)
    assert details(usage_of(stream_of(), event)) == (3, 0)


def test_tokens_that_a_content_filter_removes_are_not_accepted() -> None:
    stream = stream_of(make_filters([ContentFilterSetting("no", ("c",))]))
    usage = usage_of(stream, decoded(0, 0, "abcdef", 6, 1, last=False), decoded(0, 0, "ghi", 9, 4))
    # The filter decides at the fourth token; the two accepted tokens after it count as rejected, as does the rejected
    # one.
    assert (usage.completion_tokens, details(usage)) == (3, (3, 3))


@pytest.mark.parametrize("action", ["stop", "omit"])
def test_accepted_tokens_after_a_filters_cut_are_not_counted_as_accepted(action: Any) -> None:
    """Tokens that were not drafted come first, so bounding the accepted tokens by the completion's length would count
    some that were cut."""
    stream = stream_of(make_filters([ContentFilterSetting("no", ("x",), None, action)]))
    usage_of(stream, *(decoded(0, 0, letter, 0, 0, last=False) for letter in "abcd"))
    usage = usage_of(stream, decoded(0, 0, "exfghij", 6, 3))
    if action == "stop":
        assert (usage.completion_tokens, details(usage)) == (6, (3, 6))
    else:
        assert details(usage) == (6, 3)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3)), max_size=12))
def test_usage_never_decreases_and_ends_at_the_sums(steps: list[tuple[int, int, int]]) -> None:
    stream = stream_of(n=3)
    so_far = dict.fromkeys(range(3), (0, 0))
    before = (0, 0)
    for choice, accepted, rejected in steps:
        so_far[choice] = so_far[choice][0] + accepted, so_far[choice][1] + rejected
        now = details(usage_of(stream, decoded(0, choice, "abc", *so_far[choice], last=False)))
        assert now[0] >= before[0] and now[1] >= before[1]
        before = now
    assert before == (sum(each for each, _ in so_far.values()), sum(each for _, each in so_far.values()))


def test_a_request_without_a_prediction_reports_none() -> None:
    assert details(usage_of(stream_of(), decoded(0, 0, "abcde", 0, 0))) == (0, 0)


# --- with an engine --------------------------------------------------------------------------------------------


@pytest.fixture
def even_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    let_steps_count_the_same(monkeypatch)


def edited(text: str, seed: int) -> str:
    """Return the text with a few deletions, insertions and replacements."""
    chance = random.Random(seed)
    for _ in range(seed):
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice(["", "zq", "the 🙂"]) + text[place + chance.randrange(4) :]
    return text


@pytest.mark.parametrize("shape", slow_but([*SHAPES][::3], SHAPES))
def test_law_2_a_prediction_never_changes_a_completion(shape: str) -> None:
    fields = {"seed": 11, **SHAPES[shape]}

    async def answers(backend: EmbeddedBackend) -> list[Completion]:
        plain = await complete(backend, **fields)
        texts = [plain.choices[-1].text, *(edited(plain.choices[0].text, seed) for seed in range(5)), "zq" * 50]
        return [plain, *[await complete(backend, **fields, prediction=content(text)) for text in texts]]

    plain, *predicted = on_toy(answers)
    for answer in predicted:
        assert answer.choices == plain.choices
        assert answer.usage.completion_tokens == plain.usage.completion_tokens
        assert answer.usage.prompt_tokens == plain.usage.prompt_tokens
        accepted, rejected = details(answer.usage)
        assert 0 <= accepted <= answer.usage.completion_tokens and rejected >= 0


LONG: dict[str, Any] = {"prompt": "the cat", "max_tokens": 60, "ignore_eos": True, "seed": 4}


@pytest.mark.usefixtures("even_steps")
def test_a_correct_prediction_is_accepted_and_never_rejected() -> None:
    plain = ask(**LONG)
    answer = ask(**LONG, prediction=content(plain.choices[0].text))
    accepted, rejected = details(answer.usage)
    assert accepted > 40
    assert rejected == 0
    assert answer.choices == plain.choices


@pytest.mark.usefixtures("even_steps")
def test_a_wrong_prediction_is_rejected_and_soon_no_longer_drafted() -> None:
    accepted, rejected = details(ask(**LONG, prediction=content("@" * 200)).usage)
    assert accepted == 0
    assert 0 < rejected < 100


@pytest.mark.usefixtures("even_steps")
def test_a_stream_with_a_prediction_folds_to_the_completion() -> None:
    plain = ask(**LONG, logprobs=1).choices[0]
    chunks = ask_stream(**LONG, logprobs=1, prediction=content(plain.text), stream_options={"include_usage": True})
    folded = FoldedChoices()
    for chunk in chunks:
        folded.add(chunk.choices)
    assert folded.choices() == [plain]
    assert len(chunks) == 61, "one chunk per token, and one of usage"
    assert details(narrowing.usage_of(chunks[-1]))[0] > 0


def test_without_speculation_a_prediction_is_accepted_and_not_drafted() -> None:
    plain = ask(**LONG)
    fields = {**LONG, "prediction": content(plain.choices[0].text)}
    answer = on_toy(lambda backend: complete(backend, **fields), speculate=False)
    assert answer.choices == plain.choices
    assert details(answer.usage) == (0, 0)


@pytest.mark.usefixtures("even_steps")
def test_drafts_are_counted_by_source() -> None:
    plain = ask(**LONG)

    async def counted(backend: EmbeddedBackend) -> tuple[Usage, DraftCounts]:
        answer = await complete(backend, **LONG, prediction=content(plain.choices[0].text + "zq"))
        await settle(backend)
        return answer.usage, backend.load()["toy"].drafts

    usage, drafts = on_toy(counted)
    assert (drafts.prediction_accepted, drafts.prediction_rejected) == details(usage)
    assert drafts.prediction_accepted > 0


@pytest.mark.parametrize(("speculation", "speculate"), [("auto", True), ("off", False)])
def test_the_setting_reaches_the_engine(speculation: Any, speculate: bool) -> None:
    backend = compose(Settings(model=("toy",), speculation=speculation))
    backend.close()
    assert (toy_engine(backend)._speculation is not None) is speculate


@pytest.mark.parametrize("text", ["x" * 20_001, ["x" * 10_001] * 2], ids=["text", "parts"])
def test_a_long_prediction_is_tokenized_outside_the_event_loop(text: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoders: set[str] = set()

    def encode(self: ToyTokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
        encoders.add(threading.current_thread().name)
        return [120]

    monkeypatch.setattr(ToyTokenizer, "encode", encode)
    parts = text if isinstance(text, str) else [{"type": "text", "text": each} for each in text]
    ask(prompt="a", max_tokens=1, prediction={"type": "content", "content": parts})
    assert encoders and threading.main_thread().name not in encoders
    encoders.clear()
    ask(prompt="a", max_tokens=1, prediction=content("short"))
    assert encoders == {threading.main_thread().name}
