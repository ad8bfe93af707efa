"""`prompt_logprobs`: the numbers of `echo` with `logprobs`, by token id and with ranks, on the toy model."""

from __future__ import annotations

import asyncio
import json
from itertools import count
from typing import Any

import pytest

from onward.api.openai.choices import ChoiceParts
from onward.api.openai.decode import check_request
from onward.api.openai.response import Choice, Completion, PromptLogprob
from onward.backends.embedded import EmbeddedBackend
from onward.completions.choices import ChoiceStream
from onward.completions.filters import make_filters
from onward.completions.limits import RequestLimits
from onward.completions.plan import ServedModel, plan
from onward.engine.events import Decoded, Prefilled
from onward.errors import InvalidRequest
from onward.model_files.tokenizer import HuggingFaceTokenizer
from onward.model_files.toy import ToyTokenizer
from onward.sampling.outputs import Sampled
from onward.values import ContentFilterSetting
from tests.model_files.tiny_tokenizers import save, sentencepiece

from ..narrowing import alternatives_of, logprobs_of
from ..toy_backend import ask, complete, on_toy

TOY = ToyTokenizer()
STORY = "once upon a time there was a naïve cat"


def entries_of(choice: Choice) -> list[dict[int, PromptLogprob] | None]:
    assert isinstance(choice.prompt_logprobs, list)
    return choice.prompt_logprobs


@pytest.mark.parametrize("prompt", [STORY, TOY.encode(STORY, add_special_tokens=True)])
def test_the_numbers_are_those_of_echo_and_the_ranks_count_the_vocabulary(prompt: Any) -> None:
    fields: dict[str, Any] = {"echo": True, "logprobs": 20, "max_tokens": 0, "return_token_ids": True}
    choice = ask(prompt=prompt, prompt_logprobs=20, **fields).choices[0]
    entries, ids = entries_of(choice), choice.prompt_token_ids
    assert isinstance(ids, list) and len(entries) == len(ids) and entries[0] is None
    ranks = []
    for index, (token, entry) in enumerate(zip(ids[1:], entries[1:], strict=True), 1):
        assert entry is not None and next(iter(entry)) == token
        assert entry[token].logprob == logprobs_of(choice).token_logprobs[index]
        assert entry[token].decoded_token == logprobs_of(choice).tokens[index]
        assert {each.decoded_token: each.logprob for each in entry.values()} == alternatives_of(choice)[index]
        others = sorted(each.rank for each in entry.values() if each.rank <= 20)
        assert others == list(range(1, 21))
        ranks.append(entry[token].rank)
        assert (ranks[-1] > 20) == (len(entry) == 21)
    assert max(ranks) > 20, "the list must not have all"


def test_each_choice_of_each_prompt_has_those_of_its_prompt() -> None:
    both = ask(prompt=["a fox", "a bear"], n=2, best_of=3, seed=4, prompt_logprobs=1)
    alone = [ask(prompt=prompt, prompt_logprobs=1, max_tokens=1).choices[0] for prompt in ("a fox", "a bear")]
    expected = [entries_of(choice) for choice in alone]
    assert [entries_of(choice) for choice in both.choices] == [expected[0], expected[0], expected[1], expected[1]]


def test_prompt_logprobs_are_returned_only_on_request_and_change_nothing_else() -> None:
    fields: dict[str, Any] = {"prompt": "a fox", "n": 2, "seed": 1, "logprobs": 2}
    plain, scored = ask(**fields), ask(**fields, prompt_logprobs=0)
    assert "prompt_logprobs" not in plain.to_json() and "token_ids" not in scored.to_json()
    encoded = [json.loads(each.to_json())["choices"] for each in (plain, scored)]
    for entry in encoded[1][0]["prompt_logprobs"][1:]:
        [(token, shape)] = entry.items()
        assert token.isdigit() and list(shape) == ["logprob", "rank", "decoded_token"]
    for choice in encoded[1]:
        del choice["prompt_logprobs"]
    assert encoded[0] == encoded[1]


def test_the_second_time_the_prompt_is_cached_and_the_numbers_are_the_same() -> None:
    async def twice(backend: EmbeddedBackend) -> list[Completion]:
        return [await complete(backend, prompt=STORY * 4, prompt_logprobs=2, seed=1) for _ in range(2)]

    first, second = on_toy(twice)
    assert first.choices == second.choices
    assert first.usage.prompt_tokens_details.cached_tokens == 0 < second.usage.prompt_tokens_details.cached_tokens


def test_many_prompt_logprobs_are_built_on_a_thread_and_are_the_same() -> None:
    long = ask(prompt="x" * 1500, prompt_logprobs=20, max_tokens=1)
    short = ask(prompt="x" * 1500, prompt_logprobs=1, max_tokens=1)
    for more, fewer in zip(entries_of(long.choices[0])[1:], entries_of(short.choices[0])[1:], strict=True):
        assert more is not None and fewer is not None
        assert more.items() >= fewer.items()


def test_a_stream_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="'prompt_logprobs' and 'stream' at the same time") as refused:
        check_request({"model": "toy", "prompt": "a", "prompt_logprobs": 0, "stream": True})
    assert refused.value.param == "prompt_logprobs"
    with pytest.raises(InvalidRequest, match=r"integer below minimum value\. Expected a value >= 0, but got -1"):
        check_request({"model": "toy", "prompt": "a", "prompt_logprobs": -1})


def test_the_implicit_start_token_comes_first_and_flagged_alternatives_are_left_out(tmp_path: Any) -> None:
    """They belong to `prompt_token_ids`, which has every token of the model's prompt; `echo` does not show all of
    them."""
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = HuggingFaceTokenizer(save(sentencepiece("metaspace"), tmp_path, tokenizer_config=names))
    model = ServedModel("spm", tokenizer, tokenizer.size, 2048, None)
    fields = {"prompt": "the cat", "prompt_logprobs": 2, "return_token_ids": True, "max_tokens": 0}
    planned = plan(check_request({"model": "spm", **fields}), model, 0, count(), RequestLimits())
    [job] = planned.jobs
    assert (job.score_top, job.score_ranks) == (2, True)
    flagged, other = job.prompt[-2:]
    rule = ContentFilterSetting("test", (tokenizer.token_bytes(flagged).decode(),), None, "omit")
    stream = ChoiceStream(planned, tokenizer, make_filters([rule]))
    scores = [None, *(Sampled(token, -3.0, ((flagged, -1.0), (other, -2.0)), 9) for token in job.prompt[1:])]
    deltas = stream.accept([Prefilled(job.id, 0, scores), Decoded(job.id, 0, [], "length")])
    [choice] = asyncio.run(ChoiceParts(planned.request).write(deltas))
    assert choice.prompt_token_ids == list(job.prompt)
    first, *rest = entries_of(choice)
    assert first is None and [next(iter(entry or ())) for entry in rest] == list(job.prompt[1:])
    for entry in rest:
        assert entry is not None
        own = next(iter(entry))
        assert {token: each.rank for token, each in entry.items()} == {own: 9} | ({} if own == other else {other: 2})
