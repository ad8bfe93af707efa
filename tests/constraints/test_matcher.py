"""Masks: exactly the tokens that the grammar allows, in the layout of `sampling.masks`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from onward.constraints.grammar import GrammarError, choice_grammar, json_schema_grammar, regex_grammar
from onward.constraints.matcher import MaskBuffer, Matcher, TokenTrie
from onward.runtimes.toy.tokenizer import END, ToyTokenizer
from onward.sampling.masks import pack_mask, unpack_mask

TOKENIZER = ToyTokenizer()
SCHEMA = {
    "type": "object",
    "properties": {"the": {"type": "array", "items": {"enum": [" a", "é", 1]}}},
    "required": ["the"],
}


def make_trie(vocab_size: int = TOKENIZER.size) -> TokenTrie:
    """A trie of the toy vocabulary, with padding behind it."""

    def token_bytes(token: int) -> bytes:
        return TOKENIZER.token_bytes(token) if token < TOKENIZER.size else b""

    return TokenTrie(vocab_size, token_bytes, TOKENIZER.is_special)


def allowed(masks: np.ndarray, vocab_size: int) -> list[list[int]]:
    return [np.flatnonzero(unpack_mask(mask, vocab_size)).tolist() for mask in masks]


@pytest.mark.parametrize("vocab_size", [TOKENIZER.size, 287, 288, 289, 320])
def test_a_mask_allows_exactly_the_tokens_that_the_matcher_takes(vocab_size: int) -> None:
    """Also where the virtual token behind the vocabulary has a word of its own; padding is never allowed."""
    trie = make_trie(vocab_size)
    ends = pack_mask([END], vocab_size)
    buffer = MaskBuffer(trie)
    rng = random.Random(vocab_size)
    for grammar in (json_schema_grammar(SCHEMA), regex_grammar("( the| to|x){1,4}é?"), choice_grammar(["a", " and"])):
        matcher = trie.compile(grammar)
        for _ in range(12):
            [masks] = buffer.compute([(matcher, [], ends)])
            assert masks.shape == (1, len(ends))
            [found] = allowed(masks, vocab_size)
            text = [token for token in found if token != END]
            assert text == [token for token in range(vocab_size) if matcher.count_valid([token])]
            assert (END in found) is bool(matcher.library.is_accepting())
            if not text:
                break
            matcher.consume(rng.choice(text))
        assert not matcher.error


def test_masks_behind_a_draft_are_those_behind_its_tokens() -> None:
    trie = make_trie()
    ends = pack_mask([END, 65], trie.vocab_size)
    buffer = MaskBuffer(trie)
    matcher = trie.compile(regex_grammar("abc?|abd"))
    [masks, other] = [
        each.copy() for each in buffer.compute([(matcher, [97, 98, 99], ends), (matcher.copy(), [], ends)])
    ]
    assert allowed(masks, trie.vocab_size)[:3] == [[97], [98], [65, 99, 100, END]]
    assert allowed(masks, trie.vocab_size)[3] == [65, END], "complete: only the end tokens"
    assert allowed(other, trie.vocab_size) == [[97]]
    [behind] = buffer.compute([(matcher, [98, 98], ends)])
    assert allowed(behind, trie.vocab_size)[0] == [97]
    assert all(row for row in allowed(behind, trie.vocab_size)), "rows without a meaning allow something"


def test_a_mask_depends_on_the_tokens_alone() -> None:
    """Not on drafts, nor on what was asked in between."""
    trie, rng = make_trie(), random.Random(0)
    ends = pack_mask([END], trie.vocab_size)
    buffer = MaskBuffer(trie)
    first = trie.compile(json_schema_grammar(SCHEMA))
    for _ in range(20):
        plain, asked = first.copy(), first.copy()
        for _ in range(30):
            draft = [rng.randrange(trie.vocab_size) for _ in range(3)]
            asked.count_valid(draft)
            asked.forced_tokens(5)
            [drafted] = [each.copy() for each in buffer.compute([(asked, draft, ends)])]
            [masks] = buffer.compute([(plain, [], ends)])
            assert (drafted[0] == masks[0]).all()
            token = rng.choice(allowed(masks, trie.vocab_size)[0])
            if token == END:
                break
            plain.consume(token)
            asked.consume(token)
            assert plain.is_complete is asked.is_complete
            if plain.is_complete:
                break


def test_forced_text_becomes_long_tokens() -> None:
    trie = make_trie()
    matcher = trie.compile(choice_grammar(["x once upon a time", "x to"]))
    assert matcher.forced_tokens(9) == [ord("x"), ord(" ")]
    matcher.consume(ord("x"))
    matcher.consume(ord(" "))
    matcher.consume(ord("o"))
    assert [TOKENIZER.token_bytes(token) for token in matcher.forced_tokens(9)] == [
        b"n", b"c", b"e", b" upon", b" a", b" time",
    ]  # fmt: skip
    assert len(matcher.forced_tokens(2)) == 2


def test_the_end_of_the_text_is_known() -> None:
    trie = make_trie()
    matcher = trie.compile(choice_grammar(["ab"]))
    steps = []
    for token in b"ab":
        matcher.consume(token)
        steps.append(matcher.is_complete)
    assert steps == [False, True] and not matcher.error


def test_a_token_that_is_not_allowed_is_an_error() -> None:
    matcher = make_trie().compile(choice_grammar(["ab"]))
    matcher.consume(ord("b"))
    assert matcher.error and not matcher.is_complete


def test_copies_are_independent() -> None:
    trie = make_trie()
    first = trie.compile(choice_grammar(["ab", "cd"]))
    second: Matcher = first.copy()
    second.consume(ord("a"))
    assert second.forced_tokens(3) == [ord("b")] and first.forced_tokens(3) == []
    assert first.count_valid([ord("c")]) == 1


def test_a_grammar_that_needs_too_much_is_refused_or_becomes_an_error() -> None:
    trie = make_trie()
    with pytest.raises(GrammarError):
        trie.compile(regex_grammar("("))
    with pytest.raises(GrammarError, match="too many"):
        trie.compile(regex_grammar("a{1000000}"))
    matcher = trie.compile(regex_grammar("b?a{1000000}"))
    for token in b"ba":
        matcher.consume(token)
    assert matcher.error.startswith("lexer error: too many")
