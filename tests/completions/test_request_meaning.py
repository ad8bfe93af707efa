"""The meaning of each parameter, on the toy model (whose vocabulary is bytes, special tokens and a few words)."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest

from onward.api.openai.response import Choice, Completion
from onward.backends.embedded import EmbeddedBackend
from onward.completions.infill import CONVENTIONS, Convention, Infill, find_infill
from onward.errors import InvalidRequest
from onward.model_files.toy import ToyTokenizer

from ..narrowing import alternatives_of, logprobs_of, usage_of
from ..toy_backend import ask, ask_stream, complete, on_toy

TOY = ToyTokenizer()


# --- prompt forms ----------------------------------------------------------------------------------------------


def test_text_and_its_token_ids_are_the_same_prompt() -> None:
    ids = TOY.encode("once upon a time", add_special_tokens=True)
    by_text, by_ids = (ask(prompt=prompt, temperature=0) for prompt in ("once upon a time", ids))
    assert by_text.choices == by_ids.choices
    assert by_text.usage == by_ids.usage


def test_a_batch_returns_what_its_prompts_return_alone_prompt_by_prompt() -> None:
    batch = ask(prompt=["a fox", "a bear"], n=2, seed=4)
    assert [choice.index for choice in batch.choices] == [0, 1, 2, 3]
    alone = [ask(prompt=prompt, n=2, seed=4).choices for prompt in ("a fox", "a bear")]
    assert [choice.text for choice in batch.choices] == [choice.text for pair in alone for choice in pair]


def test_equal_prompts_of_a_batch_without_a_seed_get_different_texts() -> None:
    batch = ask(prompt=["once upon"] * 4, max_tokens=20, ignore_eos=True)
    assert len({choice.text for choice in batch.choices}) == 4


@pytest.mark.parametrize("fields", [{}, {"prompt": None}, {"prompt": ""}, {"prompt": []}, {"prompt": [""]}])
def test_an_empty_prompt_is_the_start_of_a_document(fields: dict[str, Any]) -> None:
    completion = ask(**fields, temperature=0, logprobs=1, echo=True)
    same = ask(prompt=[TOY.start_token], temperature=0)
    assert completion.choices[0].text == same.choices[0].text
    assert logprobs_of(completion.choices[0]).text_offset[0] == 0
    assert completion.usage.prompt_tokens == 1


def test_a_special_token_written_in_a_prompt_is_that_token() -> None:
    assert ask(prompt="a<|endoftext|>b").usage.prompt_tokens == 3


def test_a_prompt_counts_once_for_all_its_choices() -> None:
    usage = ask(prompt=["the cat", "the cat"], n=3, max_tokens=4, ignore_eos=True).usage
    assert usage.prompt_tokens == 2 * len(TOY.encode("the cat", add_special_tokens=True))
    assert usage.completion_tokens == 2 * 3 * 4
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"prompt": [5, 999]},
            "Invalid token in prompt: 999. Minimum value is 0, maximum value is 272 (inclusive).",
        ),
        ({"prompt": [-1]}, "Invalid token in prompt: -1."),
        ({"logit_bias": {"273": 1}}, "Invalid key in 'logit_bias': 273. Maximum value is 272."),
        (
            {"prompt": "x" * 40, "max_tokens": 2009},
            "This model's maximum context length is 2048 tokens, however you requested 2049 tokens "
            "(40 in your prompt; 2009 for the completion). Please reduce your prompt; or completion length.",
        ),
        ({"prompt": ["x"] * 100, "n": 30}, "Too many parallel completions requested."),
        ({"prompt": "a", "suffix": "b", "echo": True, "logprobs": 1}, "not supported with 'suffix'"),
    ],
)
def test_what_the_model_does_not_support_is_rejected(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        ask(**fields)


def test_more_prompts_may_be_scored_than_continued() -> None:
    assert len(ask(prompt=["x"] * 2049, max_tokens=0).choices) == 2049
    with pytest.raises(InvalidRequest, match=r"at most a total of 2048\. \(HINT: .*'max_tokens' to 0\.\)$"):
        ask(prompt=["x"] * 2049, max_tokens=1)
    with pytest.raises(InvalidRequest, match=r"at most a total of 16384\.$"):
        ask(prompt=["x"] * 16385, max_tokens=0)


def test_a_request_that_fills_the_context_exactly_is_served() -> None:
    assert ask(prompt="x" * 40, max_tokens=2008, logit_bias={"256": 100}).choices[0].finish_reason == "stop"


# --- echo and logprobs -----------------------------------------------------------------------------------------


def test_scoring_covers_each_prompt_token_and_the_first_has_no_score() -> None:
    prompt = TOY.encode("the naïve cat", add_special_tokens=True)
    completion = ask(prompt=prompt, echo=True, logprobs=1, max_tokens=0)
    logprobs = logprobs_of(completion.choices[0])
    assert completion.choices[0].text == "the naïve cat"
    assert completion.choices[0].finish_reason == "length"
    assert len(logprobs.tokens) == len(prompt)
    assert logprobs.token_logprobs[0] is None and alternatives_of(completion.choices[0])[0] == {}
    assert all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:])
    assert completion.usage.completion_tokens == 0


def test_scores_equal_the_log_probabilities_of_generation() -> None:
    """The log probability of a token is nearly the same whether it is sampled or in the prompt; on the toy, whose
    kernels differ on purpose, it is equal only for the first sampled token."""
    drawn = ask(prompt="the cat", temperature=0, max_tokens=1, logprobs=2).choices[0]
    given = ask(prompt="the cat" + drawn.text, echo=True, logprobs=2, max_tokens=0).choices[0]
    assert logprobs_of(given).token_logprobs[-1] == logprobs_of(drawn).token_logprobs[0]
    assert alternatives_of(given)[-1] == alternatives_of(drawn)[0]


def test_one_entry_follows_the_prompt_even_when_it_is_the_end_token() -> None:
    """lm-eval drops the last entry, whatever it is (behaviour §0.12)."""
    completion = ask(prompt=[97, 98, 99], echo=True, logprobs=1, max_tokens=1, logit_bias={"256": 100})
    logprobs = logprobs_of(completion.choices[0])
    assert len(logprobs.tokens) == 4
    assert logprobs.tokens[-1] == "<|endoftext|>"
    assert completion.choices[0].text == "abc"
    assert completion.usage.completion_tokens == 0


def test_the_sampled_token_is_among_the_alternatives_with_exactly_its_value() -> None:
    choice = ask(prompt="the cat", temperature=2, logprobs=2, max_tokens=60, seed=1).choices[0]
    logprobs = logprobs_of(choice)
    sizes = set()
    for name, value, alternatives in zip(
        logprobs.tokens, logprobs.token_logprobs, alternatives_of(choice), strict=True
    ):
        assert alternatives[name] == value
        assert next(iter(alternatives)) == name, "it is the first"
        others = list(alternatives.values())[1:]
        assert others == sorted(others, reverse=True)
        sizes.add(len(alternatives))
    assert sizes == {2, 3}


def test_logprobs_0_returns_no_alternatives() -> None:
    logprobs = logprobs_of(ask(prompt="the cat", logprobs=0).choices[0])
    assert logprobs.top_logprobs is None
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) > 0


def test_logprobs_are_the_raw_distribution_whatever_the_sampling() -> None:
    plain = logprobs_of(ask(prompt="the cat", logprobs=5, max_tokens=1, temperature=0).choices[0])
    best = plain.tokens[0]
    banned = TOY.token_id(best) or ord(best)
    biased = ask(prompt="the cat", logprobs=5, max_tokens=1, temperature=0, logit_bias={str(banned): -100})
    assert logprobs_of(biased.choices[0]).tokens[0] != best
    assert max(alternatives_of(biased.choices[0])[0].values()) == plain.token_logprobs[0]


def test_offsets_count_the_prompt_even_without_echo() -> None:
    logprobs = logprobs_of(ask(prompt="naïve 🙂", logprobs=1, max_tokens=4, temperature=0).choices[0])
    assert logprobs.text_offset[0] == 7


def test_tokens_as_ids_change_names_but_not_text_or_offsets() -> None:
    plain, ids = (
        ask(prompt="the cat", logprobs=1, seed=2, return_tokens_as_token_ids=flag).choices[0] for flag in (False, True)
    )
    assert plain.text == ids.text
    assert logprobs_of(plain).text_offset == logprobs_of(ids).text_offset
    assert all(name.startswith("token_id:") for name in logprobs_of(ids).tokens)
    assert all(key.startswith("token_id:") for top in alternatives_of(ids) for key in top)


def test_a_dummy_space_of_the_vocabulary_is_not_in_text_or_offsets() -> None:
    """SentencePiece encodes "the cat" as " the cat"."""

    class SpacedTokenizer(ToyTokenizer):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return super().encode(" " + text, add_special_tokens=add_special_tokens)

    async def scored(backend: EmbeddedBackend) -> Completion:
        model = backend.served["toy"]
        model.served = replace(model.served, tokenizer=SpacedTokenizer())
        return await complete(backend, prompt="the cat", echo=True, logprobs=1, max_tokens=1, ignore_eos=True)

    choice = on_toy(scored).choices[0]
    assert choice.text.startswith("the cat")
    assert logprobs_of(choice).tokens[:2] == ["the", " "]
    assert logprobs_of(choice).text_offset == [0, 3, 4, 5, 6, 7]


# --- best_of ---------------------------------------------------------------------------------------------------


def mean_logprob(choice: Choice) -> float:
    return mean([value for value in logprobs_of(choice).token_logprobs if value is not None] or [-math.inf])


def test_best_of_returns_the_best_candidates_renumbered_and_counts_all() -> None:
    fields = {"prompt": ["the cat", "a"], "logprobs": 0, "seed": 6, "max_tokens": 7}
    all_of_them = ask(**fields, n=5).choices
    best = ask(**fields, n=2, best_of=5)
    for prompt in range(2):
        candidates = all_of_them[prompt * 5 : prompt * 5 + 5]
        ranked = sorted(candidates, key=mean_logprob, reverse=True)
        chosen = best.choices[prompt * 2 : prompt * 2 + 2]
        assert [choice.text for choice in chosen] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1, 2, 3]
    assert best.usage.completion_tokens == sum(len(logprobs_of(choice).tokens) for choice in all_of_them)


def test_best_of_without_logprobs_ranks_the_same_and_returns_none() -> None:
    fields = {"prompt": "the cat", "seed": 6, "max_tokens": 7, "best_of": 4}
    shown, hidden = ask(**fields, logprobs=0).choices[0], ask(**fields).choices[0]
    assert shown.text == hidden.text
    assert hidden.logprobs is None


# --- stop, suffix, stream --------------------------------------------------------------------------------------


def test_a_stop_in_the_prompt_is_not_a_stop() -> None:
    completion = ask(prompt="STOP here", stop="STOP", echo=True, max_tokens=5, ignore_eos=True)
    assert completion.choices[0].text.startswith("STOP here")
    assert completion.choices[0].finish_reason == "length"


def test_a_stop_is_a_separate_chunk_and_a_length_is_in_the_last_one() -> None:
    stopped = ask_stream(prompt="x", stop="e", max_tokens=200, seed=1)
    assert (stopped[-1].choices[0].text, stopped[-1].choices[0].finish_reason) == ("", "stop")
    cut = ask_stream(prompt="x", max_tokens=5, ignore_eos=True, seed=1)
    assert len(cut) == 5
    assert cut[-1].choices[0].text and cut[-1].choices[0].finish_reason == "length"


def test_the_echo_is_sent_with_the_first_token() -> None:
    first = ask_stream(prompt="the cat", echo=True, logprobs=1, ignore_eos=True, seed=1)[0].choices[0]
    assert first.text.startswith("the cat") and len(first.text) > len("the cat")
    assert len(logprobs_of(first).tokens) == len(TOY.encode("the cat", add_special_tokens=True)) + 1


def test_every_token_is_a_separate_event_so_that_latencies_can_be_measured() -> None:
    chunks = ask_stream(prompt="x", max_tokens=30, ignore_eos=True, stop=["qqqq"], seed=3)
    assert len(chunks) == 30


def test_usage_is_in_the_last_chunk_and_null_before() -> None:
    chunks = ask_stream(prompt="x", stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == [] and usage_of(chunks[-1]).prompt_tokens == 1


def test_usage_can_be_sent_in_every_chunk() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = ask_stream(prompt="x", max_tokens=4, ignore_eos=True, stream_options=options)
    assert [usage_of(chunk).completion_tokens for chunk in chunks] == [1, 2, 3, 4, 4]


def test_a_suffix_is_used_and_counted_and_not_returned() -> None:
    plain = ask(prompt="the cat", temperature=0)
    filled = ask(prompt="the cat", suffix="the mat", temperature=0)
    assert filled.choices[0].text != plain.choices[0].text
    both = len(TOY.encode("the catthe mat", add_special_tokens=True))
    assert filled.usage.prompt_tokens == both + 3
    echoed = ask(prompt="the cat", suffix="the mat", temperature=0, echo=True)
    assert echoed.choices[0].text == "the cat" + filled.choices[0].text


class OnlyTokens(ToyTokenizer):
    """A tokenizer that has only the given tokens."""

    def __init__(self, *literals: str) -> None:
        super().__init__()
        self._literals = literals

    def token_id(self, literal: str) -> int | None:
        return self._literals.index(literal) if literal in self._literals else None


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_convention_is_found_by_its_tokens_and_arranged_as_in_training(convention: Convention) -> None:
    literals = [convention.prefix, convention.suffix, *([convention.middle] if convention.middle else [])]
    infill = find_infill(OnlyTokens(*literals, *convention.ends))
    assert infill is not None
    assert infill.ends == frozenset(range(len(literals), len(literals) + len(convention.ends)))
    arranged = infill.arrange([70, 71], [80])
    expected = [1, 80, 0, 70, 71] if convention.suffix_first else [0, 70, 71, 1, 80, 2]
    assert arranged == expected


def test_ids_that_the_files_state_come_before_texts_but_not_before_what_texts_say_of_the_same_ids() -> None:
    tokenizer = OnlyTokens("<PRE>", "<SUF>", "<MID>", "<EOT>")
    by_text = find_infill(tokenizer)
    tokenizer.infill_tokens = {"prefix": 0, "suffix": 1, "middle": 2, "padding": 9}
    assert find_infill(tokenizer) == by_text and by_text is not None and by_text.ends == {3}
    tokenizer.infill_tokens = {"prefix": 7, "suffix": 8, "middle": 6, "padding": 9, "repository": 4, "file": 5}
    assert find_infill(tokenizer) == Infill(7, 8, 6, frozenset({9, 4, 5}), False, repository=4, file=5)
    tokenizer.infill_tokens = {"prefix": 7, "suffix": 8}  # as in files of models that have no middle token
    assert find_infill(tokenizer) == by_text


def test_a_model_without_infill_tokens_rejects_a_suffix() -> None:
    assert find_infill(OnlyTokens("<s>")) is None
    assert isinstance(find_infill(TOY), Infill)

    async def refused(backend: EmbeddedBackend) -> None:
        model = backend.served["toy"]
        model.served = replace(model.served, infill=None)
        await complete(backend, prompt="a", suffix="b")

    with pytest.raises(InvalidRequest) as caught:
        on_toy(refused)
    assert caught.value.param == "suffix"
