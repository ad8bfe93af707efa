"""Masks: exactly the tokens that the grammar allows, in the layout of `sampling.masks`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from onward.constraints.errors import GrammarError
from onward.constraints.grammar import choice_grammar, regex_grammar
from onward.constraints.json_schema import json_schema_grammar
from onward.constraints.matcher import MaskBuffer, Matcher, TokenTrie
from onward.constraints.tokens import MAX_TOKENIZED_CHARACTERS, LibraryTokens, encode_with
from onward.errors import TextNotEncodable
from onward.model_files.toy import END, ToyTokenizer
from onward.sampling.masks import pack_mask, unpack_mask

TOKENIZER = ToyTokenizer()
SCHEMA = {
    "type": "object",
    "properties": {"the": {"type": "array", "items": {"enum": [" a", "é", 1]}}},
    "required": ["the"],
}


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def make_trie(vocab_size: int = TOKENIZER.size) -> TokenTrie:
    """A trie of the toy vocabulary, with padding after it."""

    def token_bytes(token: int) -> bytes:
        return TOKENIZER.token_bytes(token) if token < TOKENIZER.size else b""

    return TokenTrie(LibraryTokens(vocab_size, token_bytes, TOKENIZER.is_special, encode))


def allowed(masks: np.ndarray, vocab_size: int) -> list[list[int]]:
    return [np.flatnonzero(unpack_mask(mask, vocab_size)).tolist() for mask in masks]


@pytest.mark.parametrize("vocab_size", [TOKENIZER.size, 287, 288, 289, 320])
def test_a_mask_allows_exactly_the_tokens_that_the_matcher_takes(vocab_size: int) -> None:
    """Also where the virtual token after the vocabulary is in a mask word of its own; padding is never allowed."""
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
            forced = matcher.forced_tokens()
            spelling = [token for token in range(vocab_size) if matcher.count_valid([token])]
            assert text == (forced[:1] or spelling) and set(text) <= set(spelling)
            assert (END in found) is bool(matcher.library.is_accepting())
            if not text:
                break
            matcher.consume(rng.choice(text))
        assert not matcher.error


def test_masks_after_a_draft_are_those_after_its_tokens() -> None:
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
    [after] = buffer.compute([(matcher, [98, 98], ends)])
    assert allowed(after, trie.vocab_size)[0] == [97]
    assert all(row for row in allowed(after, trie.vocab_size)), "rows without a meaning allow something"


def test_a_mask_depends_on_the_tokens_alone() -> None:
    """Neither on drafts nor on masks computed in between."""
    trie, rng = make_trie(), random.Random(0)
    ends = pack_mask([END], trie.vocab_size)
    buffer = MaskBuffer(trie)
    first = trie.compile(json_schema_grammar(SCHEMA))
    for _ in range(20):
        plain, asked = first.copy(), first.copy()
        for _ in range(30):
            draft = [rng.randrange(trie.vocab_size) for _ in range(3)]
            asked.count_valid(draft)
            asked.forced_tokens()
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


def test_forced_text_has_the_tokens_of_the_tokenizer() -> None:
    trie = make_trie()
    matcher = trie.compile(choice_grammar(["x once upon a time!", "x to"]))
    forced = [TOKENIZER.token_bytes(token) for token in matcher.forced_tokens()]
    assert forced == [b"x"], "the space may belong to the next token"
    for token in encode("x once"):
        matcher.consume(token)
    forced = [TOKENIZER.token_bytes(token) for token in matcher.forced_tokens()]
    assert forced == [b" upon", b" a", b" time", b"!"]
    ends = pack_mask([END], trie.vocab_size)
    [masks] = MaskBuffer(trie).compute([(matcher, matcher.forced_tokens(), ends)])
    assert allowed(masks, trie.vocab_size)[:4] == [[token] for token in matcher.forced_tokens()]


def test_a_long_forced_text_is_tokenized_a_part_at_a_time() -> None:
    longest = 0

    def counting(text: str) -> list[int]:
        nonlocal longest
        longest = max(longest, len(text))
        return encode(text)

    trie = TokenTrie(LibraryTokens(TOKENIZER.size, TOKENIZER.token_bytes, TOKENIZER.is_special, counting))
    text = "once upon a time and " * 200
    matcher = trie.compile(choice_grammar([text]))
    tokens = []
    while not matcher.is_complete:
        tokens.append(matcher.forced_tokens()[0])
        matcher.consume(tokens[-1])
    assert b"".join(map(TOKENIZER.token_bytes, tokens)).decode() == text
    assert longest <= MAX_TOKENIZED_CHARACTERS + 1 and len(tokens) < len(text) / 2


class RefusingTokenizer(ToyTokenizer):
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise TextNotEncodable("it has no tokens")


class ProcessTokenizer(ToyTokenizer):
    """As one whose process may take too long for a text, or not."""

    has_process = True


@pytest.mark.parametrize("tokenizer", [RefusingTokenizer(), ProcessTokenizer()])
def test_a_forced_text_that_may_be_refused_is_spelled_by_the_longest_tokens(tokenizer: ToyTokenizer) -> None:
    """The library asks for its tokens while the engine computes a step, and they must not depend on time."""
    trie = TokenTrie(LibraryTokens(tokenizer.size, tokenizer.token_bytes, tokenizer.is_special, encode_with(tokenizer)))
    matcher = trie.compile(choice_grammar(["once upon a time!"]))
    tokens = []
    while not matcher.is_complete:
        tokens.append(matcher.forced_tokens()[0])
        matcher.consume(tokens[-1])
    assert [tokenizer.token_bytes(token) for token in tokens] == [
        b"o",
        b"n",
        b"c",
        b"e",
        b" upon",
        b" a",
        b" time",
        b"!",
    ]


@pytest.mark.parametrize("space", ["", " "])
def test_forced_text_is_spelled_exactly_whatever_the_tokenizer_returns(space: str) -> None:
    """One that puts a space before the first word, as those of SentencePiece do, and one that normalizes."""

    def prefixing(text: str) -> list[int]:
        return encode(space + text.replace("é", "e"))

    trie = TokenTrie(LibraryTokens(TOKENIZER.size, TOKENIZER.token_bytes, TOKENIZER.is_special, prefixing))
    for text in ("upon a time", "é the", "<|endoftext|>", "\n\n"):
        matcher = trie.compile(choice_grammar([text]))
        tokens = matcher.forced_tokens()
        assert b"".join(map(TOKENIZER.token_bytes, tokens)).decode() == text
        assert not any(map(TOKENIZER.is_special, tokens))


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
    assert second.forced_tokens() == [ord("b")] and first.forced_tokens() == []
    assert first.count_valid([ord("c")]) == 1


def test_a_grammar_that_needs_too_much_is_refused_or_becomes_an_error() -> None:
    trie = make_trie()
    with pytest.raises(GrammarError):
        trie.compile(regex_grammar("("))
    matcher = trie.compile(regex_grammar("b?a{1000000}"))
    buffer, ends = MaskBuffer(trie), pack_mask([END], trie.vocab_size)
    for token in b"baa":
        buffer.compute([(matcher, [], ends)])
        matcher.consume(token)
    assert matcher.error.startswith("it is too complex")
