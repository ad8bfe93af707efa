"""The tokenizer round-trips every string and adds no tokens."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from training.tokenizer import SPECIAL_TOKENS, encode, special_ids

AWKWARD = [
    "",
    " ",
    "plain words",
    "  two leading, three trailing   ",
    "line\r\nline\rline\n\n\n",
    "\ttab\n    indented\n\t\tdeeper",
    "\x00\x01\x1b[31m\x7f\x85",
    "emoji 👩‍👩‍👧‍👦 and 🇩🇪 and 😀",
    "漢字かな交じり文 한국어 العربية",
    "lone marks \u0301\u0308 e\u0301 \u200b\ufeff\u2028",
    "ﬁ ligature, ½, ²",
    "12345 3.14 0x1f",
    "<|endoftext| not special",
    "\U0010ffff\ue000",
]


@pytest.mark.parametrize("text", AWKWARD)
def test_every_string_round_trips(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=False) == text


@pytest.mark.parametrize("text", SPECIAL_TOKENS)
def test_special_tokens_are_one_token_each(tokenizer: Tokenizer, text: str) -> None:
    assert encode(tokenizer, text) == [special_ids(tokenizer)[text]]
    assert tokenizer.decode([special_ids(tokenizer)[text]], skip_special_tokens=False) == text


def test_no_tokens_are_added(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("boat").ids == encode(tokenizer, "boat")


def test_all_bytes_are_in_the_vocabulary(tokenizer: Tokenizer) -> None:
    single = [token for token in tokenizer.get_vocab() if len(token) == 1]
    assert len(single) == 256


def test_training_a_tokenizer_is_deterministic(sources: dict, tokenizer: Tokenizer) -> None:
    from training.tokenizer import train_tokenizer

    assert train_tokenizer(sources, seed=1).to_str() == tokenizer.to_str()
