"""GBNF: random grammars against a matcher that shares no code with the package's, and llama.cpp's own grammars.

The matcher was compared with llama.cpp itself (llama-grammar.cpp of llama-cpp-python 0.3.36, by
`llama_grammar_accept_str`): 1,658 grammars of this generator and 19,783 texts, without a difference. llama.cpp refuses
rules that begin with themselves, which are compared with the matcher alone.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import settings

from onward.constraints.errors import GrammarError
from onward.constraints.matcher import Matcher, TokenTrie
from onward.constraints.tokens import byte_tokens
from tests.constraints import gbnf_oracle as oracle
from tests.constraints.test_grammar import gbnf_or_lark
from tests.examples import examples

NUM_GRAMMARS, NUM_TEXTS, MAX_CHARACTERS = 1_000, 8, 24
TRIE = TokenTrie(byte_tokens())
GRAMMARS = Path(__file__).parent / "llama_grammars"


def accepts(first: Matcher, text: str) -> bool:
    matcher, tokens = first.copy(), list(text.encode())
    if matcher.count_valid(tokens) < len(tokens):
        return False
    for token in tokens:
        matcher.consume(token)
    assert not matcher.error
    return bool(matcher.library.is_accepting())


def compiled(text: str) -> Matcher | None:
    """The matcher of a grammar, None if it matches no text."""
    try:
        return TRIE.compile(gbnf_or_lark(text))
    except GrammarError as error:
        assert str(error) == "it matches no text"
        return None


def changed(text: str, rng: random.Random) -> str:
    """A text with a character more, fewer, or another one."""
    at = rng.randrange(len(text) + 1)
    put: str = rng.choice(["", *oracle.ALPHABET])
    return text[:at] + put + text[at + rng.randrange(2) :]


def test_a_grammar_accepts_exactly_the_texts_that_it_describes() -> None:
    num_accepted = num_rejected = 0
    first_seed = 0 if settings().derandomize else random.randrange(2**32)  # `make fuzz` draws new ones
    for seed in range(first_seed, first_seed + examples(NUM_GRAMMARS)):
        rng = random.Random(seed)
        rules, written = oracle.Writer(rng).rules()
        first = compiled(written)
        for _ in range(NUM_TEXTS):
            text = oracle.text_of(rules, rules["root"], rng)
            text = changed(text, rng) if rng.random() < 0.5 else text
            if len(text) > MAX_CHARACTERS:
                continue
            is_right = oracle.Matcher(rules, text).matches()
            assert (first is not None and accepts(first, text)) is is_right, (seed, written, text)
            num_accepted += is_right
            num_rejected += not is_right
    assert num_accepted > examples(NUM_GRAMMARS) and num_rejected > examples(NUM_GRAMMARS)


def test_many_keywords_with_names_and_recursion_are_one_lexeme() -> None:
    """As separate ones they would exceed the library's limit of 2,000 possible lexemes."""
    keywords = " | ".join(f'"k{number:05}"' for number in range(3_000))
    first = compiled(f'root ::= "(" root ")" | [a-z]+ | {keywords}')
    assert first is not None
    assert [accepts(first, text) for text in ("((k02999))", "k", "(k0000)", "(k03000)")] == [True, True, False, False]


TEXTS: dict[str, tuple[list[str], list[str]]] = {
    "arithmetic": (
        ["a=b\n", "x1 *2-( 3 +y )= 7\n", "a = b\n\nc=d\n", "1+2+3=4 \n", "((a))=b\n"],
        ["a=b", "a+=b\n", "=1\n", "a=b+c\n", "A=b\n"],
    ),
    "c": (
        [
            "int main(){}",
            "int f(int x){return  x;}",
            "float intx(char c){while(c<=1){return 1;}}",
            "int f(){int i = 0;for(i = 0; i<9; i = i+1){g (i, -1);}}",
            "int f(){returned = 1*( 2 );//x\n/*a*b*/}",
            "int f(){if(a==b){}else{}}int g(){}",
        ],
        ["int main()", "int 1f(){}", "int f(){return1;}", "int f(){return 1}", "double f(){}", "int f(){x=1;}"],
    ),
    "chess": (
        ["1. e4 e5\n2. Nf3 Nc6\n", "1. e4 c5\n2. Nf3 d6\n3. O-O exd8=Q+\n10. Qh4# O-O-O\n", "1. a1 a2\n1. Bxe4 Rad1\n"],
        ["1. e4 e5\n", "1. e4 e5\n2. Nf3\n", "1. e9 e5\n2. e4 e5\n", "1. e4 e5\n2. Nf3 Nc6"],
    ),
    "english": (["Hi", "Don't [stop]!", "a\tb c\n1-2_3"], ["", " a", "a  b", "naïve"]),
    "japanese": (["こんにちは", "ありがとう、 世界", "カタカナ 漢字"], ["", "a", "こ\u3000に", "あ "]),
    "json": (
        ["{}", '{"a":1}', '{ "a": [1, -2.5e+3, true, null, {"b": "\\u00e9\\n"}] }', '{"":""} '],
        ["[]", "1", '{"a"}', '{"a":01}', '{"a":"\\x"}', '{"a":1,}', "{'a':1}"],
    ),
    "json_arr": (["[\n1]", '[\n{"a": 1},\n"b"]', "[\n]"], ["[1]", '{"a":1}', "[\n1,2]", "[\n1] "]),
    "list": (["- one\n", "- one\n- \t two\n", "- é - -\n"], ["", "- one", "one\n", "- \n", "- a\r\n"]),
}
"""Texts that a grammar is meant for, and others. llama.cpp takes and rejects the same."""


def test_every_grammar_has_texts() -> None:
    assert TEXTS.keys() == {path.stem for path in GRAMMARS.glob("*.gbnf")}


@pytest.mark.parametrize("name", TEXTS)
def test_llama_cpps_grammars_accept_the_texts_that_they_are_meant_for(name: str) -> None:
    first = compiled((GRAMMARS / f"{name}.gbnf").read_text(encoding="utf-8"))
    assert first is not None
    accepted, rejected = TEXTS[name]
    assert [text for text in accepted if not accepts(first, text)] == []
    assert [text for text in rejected if accepts(first, text)] == []
