"""Texts that are accepted as grammars, and those that are refused, with a message that a client can act on."""

from __future__ import annotations

import pytest

from onward.constraints.errors import GrammarError
from onward.constraints.grammar import MAX_GRAMMAR_BYTES, check, choice_grammar, regex_grammar, text_grammar
from onward.constraints.json_schema import json_schema_grammar
from onward.constraints.matcher import Matcher, TokenTrie
from onward.constraints.references import References
from onward.constraints.tokens import byte_tokens
from onward.model_files.toy import ToyTokenizer

TOY = References(ToyTokenizer(), ToyTokenizer().size, ToyTokenizer.end_tokens)


def gbnf_or_lark(text: str) -> str:
    """The grammar that a text describes for the toy vocabulary."""
    return text_grammar(text, TOY.table(text))


def matches(grammar: str, text: str) -> bool:
    """Whether the text is complete by the grammar, in a vocabulary of single bytes."""
    trie = TokenTrie(byte_tokens())
    matcher = trie.compile(grammar)
    tokens = list(text.encode())
    return matcher.count_valid(tokens) == len(tokens) and _take(matcher, tokens)


def _take(matcher: Matcher, tokens: list[int]) -> bool:
    for token in tokens:
        matcher.consume(token)
    return bool(matcher.library.is_accepting())


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"name":"é\\n🙂","age":-3}', True),
        ('{ "name" : "x" , "age" : 1 }', True),
        ('{"name":"x"}', False),
        ('{"name":"x","age":1.5}', False),
        ('{"name":"x","age":1,"b":2}', False),
        ('{\n"name":"x","age":1}', False),
    ],
)
def test_a_schema_allows_what_is_valid_by_it(text: str, valid: bool) -> None:
    assert matches(json_schema_grammar(PERSON), text) is valid


def test_white_space_is_what_the_pattern_says() -> None:
    assert matches(json_schema_grammar(PERSON, whitespace=None), '{"name":"x","age":1}')
    assert not matches(json_schema_grammar(PERSON, whitespace=None), '{"name": "x","age":1}')
    assert matches(json_schema_grammar(PERSON, whitespace=r"\n?"), '{\n"name":\n"x","age":1}')
    own = PERSON | {"x-guidance": {"whitespace_pattern": "[_]?"}}
    assert matches(json_schema_grammar(own), '{_"name":"x","age":1}')


def test_true_is_any_json() -> None:
    assert all(matches(json_schema_grammar(True), text) for text in ("null", "[1, {}]", '"x"'))


@pytest.mark.parametrize(
    ("pattern", "text", "valid"),
    [
        (r"\d{3}-\d{4}", "555-1234", True),
        (r"\d{3}-\d{4}", "555-12345", False),
        ("a/b", "a/b", True),
        (r"a\/b", "a/b", True),
        ('"[^"]*"', '"x y"', True),
        ("(é|🙂)+", "é🙂é", True),
        ("a b#", "a b#", True),
        ("^abc$", "abc", True),
    ],
)
def test_a_regular_expression_matches_the_whole_text(pattern: str, text: str, valid: bool) -> None:
    assert matches(regex_grammar(pattern), text) is valid


def test_a_choice_is_one_of_the_texts_literally() -> None:
    choices = ["yes", "yes!", 'a "b"\n\\d|/', "é🙂", ""]
    assert all(matches(choice_grammar(choices), text) for text in choices)
    assert not any(matches(choice_grammar(choices), text) for text in ("no", "ye", "ad"))


def test_a_grammar_is_gbnf_or_lark() -> None:
    gbnf = 'root ::= "no" | ws number\nws ::= [ \\t]*\nnumber ::= [0-9]{2,3} # digits\n'
    lark = 'start: "no" | WS? NUMBER\nWS: /[ \\t]+/\nNUMBER: /[0-9]{2,3}/\n'
    for grammar in (gbnf_or_lark(gbnf), gbnf_or_lark(lark)):
        assert check(grammar) == ""
        assert all(matches(grammar, text) for text in ("no", " 12", "123"))
        assert not any(matches(grammar, text) for text in ("1", "1234", "yes"))


def test_what_is_not_a_schema_is_refused() -> None:
    wrong: list[object] = [False, 3, [], "x", None]
    for schema in wrong:
        with pytest.raises(GrammarError, match="must be an object"):
            json_schema_grammar(schema)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(GrammarError, match=f"at most {MAX_GRAMMAR_BYTES}"):
        regex_grammar("a" * MAX_GRAMMAR_BYTES)
    with pytest.raises(GrammarError, match="at most"):
        gbnf_or_lark("#" * (MAX_GRAMMAR_BYTES + 1))


@pytest.mark.parametrize("text", ["\ud800", 'root ::= "\udc00"'])
def test_half_of_a_surrogate_pair_is_refused(text: str) -> None:
    for build in (regex_grammar, gbnf_or_lark, lambda each: choice_grammar([each])):
        with pytest.raises(GrammarError, match="half of a surrogate pair"):
            build(text)
