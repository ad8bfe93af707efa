"""Models that need a start token: it is there exactly once, is never shown or counted, and its absence from token ids
is noticed."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from onward.api.openai.decode import check_request
from onward.completions.limits import RequestLimits
from onward.completions.plan import Plan, ServedModel, plan
from onward.model_files.tokenizer import HuggingFaceTokenizer
from tests.model_files.tiny_tokenizers import byte_level, save, sentencepiece

START = 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    folder = save(sentencepiece("metaspace"), tmp_path_factory.mktemp("spm"), tokenizer_config=names)
    tokenizer = HuggingFaceTokenizer(folder)
    return ServedModel("spm", tokenizer, tokenizer.size, 2048, None)


def planned(model: ServedModel, prompt: Any, **fields: Any) -> Plan:
    request = check_request({"model": model.id, "prompt": prompt, **fields})
    return plan(request, model, 0, count(), RequestLimits(100))


def test_a_text_begins_with_the_start_token_which_is_neither_shown_nor_counted(model: ServedModel) -> None:
    (prompt,) = planned(model, "the cat").prompts
    assert prompt.job.prompt[0] == START and prompt.job.prompt[1:] == prompt.tokens
    assert prompt.num_prompt_tokens == len(prompt.tokens) == len(prompt.job.prompt) - 1


def test_a_text_that_begins_with_it_does_not_get_two_and_shows_what_was_sent(model: ServedModel) -> None:
    (prompt,) = planned(model, "<s>the cat").prompts
    assert prompt.job.prompt.count(START) == 1
    assert prompt.tokens == prompt.job.prompt and prompt.token_bytes[0] == b"<s>"
    assert prompt.text == "<s>the cat" == b"".join(prompt.token_bytes).decode()


@pytest.mark.parametrize("style", ["metaspace", "normalizer"])
@pytest.mark.parametrize(
    "text",
    [
        "the cat",
        " the cat",
        "  ",
        "<s>the",
        "a</s>the cat",
        "a</s> the",
        "a </s>  b </s>",
        " </s> ",
        "</s></s>é",
        "\n</s>",
    ],
)
def test_the_spaces_that_the_vocabulary_adds_are_not_shown(style: str, text: str, tmp_path: Path) -> None:
    """SentencePiece adds one to the first word, and old files of its models one after each special token."""
    tokenizer = HuggingFaceTokenizer(save(sentencepiece(style), tmp_path))
    (prompt,) = planned(ServedModel("spm", tokenizer, tokenizer.size, 2048, None), text).prompts
    assert prompt.text == text == b"".join(prompt.token_bytes).decode()
    full = b"".join(map(tokenizer.token_bytes, prompt.tokens))
    assert len(full) > len(text.encode()) or style == "metaspace"


def test_the_literal_alone_is_an_empty_document(model: ServedModel) -> None:
    for text in ("<s>", ""):
        assert planned(model, text).prompts[0].job.prompt == (START,)


def test_token_ids_are_used_unchanged_and_warned_of_where_it_is_missing(model: ServedModel) -> None:
    ids = list(planned(model, "the cat").prompts[0].tokens)
    without = planned(model, [[START, *ids], ids])
    assert [job.prompt for job in without.jobs] == [(START, *ids), tuple(ids)]
    assert "does not begin with the start token 1 ('<s>')" in without.warning
    assert not planned(model, [START, *ids]).warning
    assert not planned(model, ["the cat", "the dog"]).warning


def test_models_without_a_start_token_need_none(tmp_path: Path) -> None:
    tokenizer = HuggingFaceTokenizer(save(byte_level(), tmp_path))
    assert not planned(ServedModel("bpe", tokenizer, tokenizer.size, 2048, None), [5, 6]).warning


def test_offsets_are_those_of_the_normalised_text_that_is_returned(tmp_path: Path) -> None:
    library = byte_level()
    library.normalizer = normalizers.NFC()
    tokenizer = HuggingFaceTokenizer(save(library, tmp_path))
    model = ServedModel("nfc", tokenizer, tokenizer.size, 2048, None)
    (prompt,) = planned(model, "the cafe\u0301 of Zu\u0308rich", echo=True, logprobs=0).prompts
    assert prompt.text == "the café of Zürich" == b"".join(prompt.token_bytes).decode()
    (same,) = planned(model, "the café \U0001f642", echo=True, logprobs=0).prompts
    assert same.text == "the café \U0001f642"
