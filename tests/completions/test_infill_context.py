"""An infill with other files and a known beginning: the model's prompt, and what is left out of it."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from msgspec import structs

from onward.api.openai.decode import check_request
from onward.api.openai.errors import openai_words
from onward.completions.infill import Infill, find_infill
from onward.completions.limits import RequestLimits
from onward.completions.plan import Plan, ServedModel, plan
from onward.completions.request import InfillContext
from onward.errors import InvalidRequest
from onward.model_files.toy import ToyTokenizer

TOY = ToyTokenizer()
PREFIX, SUFFIX, MIDDLE = (TOY.token_id(f"<|fim_{name}|>") for name in ("prefix", "suffix", "middle"))
REPOSITORY, FILE = 1, 2
"""Control characters that stand for the tokens that the toy does not have."""


def served(*, has_files: bool = False, context_length: int = 2048) -> ServedModel:
    infill = find_infill(TOY)
    assert infill is not None
    if has_files:
        infill = Infill(
            infill.prefix, infill.suffix, infill.middle, infill.ends, False, repository=REPOSITORY, file=FILE
        )
    return ServedModel("toy", TOY, TOY.size, context_length, infill)


def planned(model: ServedModel, context: InfillContext | None, **fields: Any) -> Plan:
    fill = fields.pop("fill_context", False)
    request = check_request({"model": "toy", **fields})
    request = structs.replace(request, infill=context, fill_context=fill)
    with openai_words():
        return plan(request, model, 0, count(), RequestLimits(100))


def encoded(text: str) -> list[int]:
    return TOY.encode(text, add_special_tokens=False)


def job_prompt(model: ServedModel, context: InfillContext, **fields: Any) -> list[int]:
    return list(planned(model, context, **fields).jobs[0].prompt)


def test_the_beginning_of_the_infill_comes_last() -> None:
    ids = job_prompt(served(), InfillContext(beginning="xy"), prompt="p", suffix="s")
    assert ids == [PREFIX, *encoded("p"), SUFFIX, *encoded("s"), MIDDLE, *encoded("xy")]


def test_files_come_first_with_the_models_tokens() -> None:
    files = (("a.q", "AA"), ("b.q", "BB"))
    ids = job_prompt(served(has_files=True), InfillContext(files), prompt="p", suffix="s")
    before = [REPOSITORY, *encoded("myproject\n"), FILE, *encoded("a.q\nAA"), FILE, *encoded("b.q\nBB")]
    assert ids == [*before, FILE, *encoded("filename\n"), PREFIX, *encoded("p"), SUFFIX, *encoded("s"), MIDDLE]


def test_files_come_first_as_snippets_without_such_tokens() -> None:
    ids = job_prompt(served(), InfillContext((("a.q", "AA"),)), prompt="p", suffix="s")
    assert ids[: -len([PREFIX, "p", SUFFIX, "s", MIDDLE])] == encoded("\n\n--- snippet ---\n\nAA")


def test_the_first_files_are_left_out_where_not_all_have_room() -> None:
    files = (("a.q", "A" * 40), ("b.q", "B" * 40))
    ids = job_prompt(served(context_length=100), InfillContext(files), prompt="p", suffix="s", max_tokens=16)
    assert ids.count(ord("B")) == 40 and ids.count(ord("A")) == 0 and len(ids) + 16 <= 100
    assert (
        job_prompt(served(context_length=40), InfillContext(files), prompt="p", suffix="s", max_tokens=16)[0] == PREFIX
    )


def test_empty_texts_are_an_infill_too() -> None:
    assert job_prompt(served(), InfillContext(), prompt="") == [PREFIX, SUFFIX, MIDDLE]


def test_a_model_without_infill_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="fill-in-the-middle"):
        planned(ServedModel("toy", TOY, TOY.size, 64, None), InfillContext(), prompt="p")


def test_a_request_that_fills_the_context_gets_what_is_left_of_it() -> None:
    (job,) = planned(served(context_length=64), None, prompt="a" * 30, max_tokens=10**9, fill_context=True).jobs
    assert job.max_tokens == 34
    (job,) = planned(served(context_length=64), None, prompt="a" * 30, max_tokens=5, fill_context=True).jobs
    assert job.max_tokens == 5
    with pytest.raises(InvalidRequest, match="maximum context length"):
        planned(served(context_length=64), None, prompt="a" * 65, max_tokens=5, fill_context=True)
