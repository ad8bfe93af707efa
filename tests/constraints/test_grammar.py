"""What can be a grammar, and what is refused, in words that a client can act on."""

from __future__ import annotations

import pytest

from onward.constraints.grammar import (
    MAX_GRAMMAR_BYTES,
    GrammarError,
    check,
    choice_grammar,
    regex_grammar,
    text_grammar,
)
from onward.constraints.json_schema import json_schema_grammar
from onward.constraints.matcher import Matcher, TokenTrie
from onward.constraints.tokens import byte_tokens


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
    for grammar in (text_grammar(gbnf), text_grammar(lark)):
        assert check(grammar) == ""
        assert all(matches(grammar, text) for text in ("no", " 12", "123"))
        assert not any(matches(grammar, text) for text in ("1", "1234", "yes"))


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (regex_grammar("("), "unclosed group"),
        (regex_grammar("(?=x)y"), "look-around"),
        (json_schema_grammar({"type": "foo"}), "Invalid type: foo"),
        (json_schema_grammar({"not": {}}), 'Unimplemented keys: ["not"]'),
        (json_schema_grammar({"$ref": "#/nowhere"}), "nowhere"),
        (json_schema_grammar({}, whitespace="("), "unclosed group"),
        (text_grammar("start: other"), "other"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_the_librarys_words(grammar: str, words: str) -> None:
    problem = check(grammar)
    assert words.lower() in problem.lower()
    assert "\n" not in problem and "x-guidance" not in problem


def test_what_is_no_schema_or_no_grammar_is_refused() -> None:
    wrong: list[object] = [False, 3, [], "x", None]
    for schema in wrong:
        with pytest.raises(GrammarError, match="must be an object"):
            json_schema_grammar(schema)
    with pytest.raises(GrammarError, match="Expected"):
        text_grammar("root ::= (")
    with pytest.raises(GrammarError, match="Rule 'other' not found"):
        text_grammar("root ::= other")
    with pytest.raises(GrammarError, match="nested too deeply"):
        text_grammar("root ::= " + "(" * 5000 + '"a"' + ")" * 5000)


def test_what_is_too_large_is_refused() -> None:
    with pytest.raises(GrammarError, match=f"at most {MAX_GRAMMAR_BYTES}"):
        regex_grammar("a" * MAX_GRAMMAR_BYTES)
    with pytest.raises(GrammarError, match="at most"):
        text_grammar("#" * (MAX_GRAMMAR_BYTES + 1))
