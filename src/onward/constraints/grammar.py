"""Grammars as llguidance reads them: Lark, with JSON schemas and regular expressions inside."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from onward.constraints.first_steps import chain_problem, error_of_first_steps
from onward.constraints.tokens import byte_tokens

MAX_GRAMMAR_BYTES = 65_536
"""Longest grammar, schema or list of choices, in bytes of UTF-8."""
MAX_CHECKED_GRAMMARS = 64
MAX_REASON_CHARACTERS = 500
"""Of what the library says about a grammar."""
DEFAULT_WHITESPACE = "[ ]?"
"""Between the tokens of JSON: nothing or a space. JSON allows more, but a small model that may write white space for
ever often does."""
LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
"""Of llguidance.LLParserLimits. A quarter of the library's own fuel for a step: a hostile mask takes milliseconds, no
usual schema or expression needs as much."""

_MATCHES_NOTHING = ("NoExtension", "NoExtensionBias")
_PLACE = re.compile(r"^at \d+\(\d+\): ")
_EXCERPT = re.compile(r"\n *\d+ \| .*", re.DOTALL)


class GrammarError(Exception):
    """A grammar that cannot be used. The message says why, in the library's words where it is the library that
    refuses."""


def regex_grammar(pattern: str) -> str:
    """Return the grammar of the texts that match a regular expression as a whole. Raises GrammarError."""
    from llguidance import regex_to_lark

    return bounded(f"start: /{regex_to_lark(pattern)}/")


def choice_grammar(choices: Sequence[str]) -> str:
    """Return the grammar of some texts. Raises GrammarError."""
    return bounded("start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in choices))


def text_grammar(text: str) -> str:
    """Return the grammar that a text describes: in llguidance's Lark, or in GBNF, llama.cpp's notation, which is
    converted. Raises GrammarError."""
    from llguidance.gbnf_to_lark import any_to_lark

    bounded(text)
    try:
        converted: str = any_to_lark(text)
    except RecursionError:
        raise GrammarError("it is nested too deeply") from None
    except Exception as error:
        raise GrammarError(shown_reason(str(error))) from None
    return bounded(converted)


@lru_cache(maxsize=MAX_CHECKED_GRAMMARS)
def check(grammar: str) -> str:
    """Return why a grammar cannot be compiled, in the library's words; "" if it can. May take a second, mostly without
    the interpreter lock.

    The vocabulary is that of all bytes: an engine may still refuse the grammar, because its tokens are longer.
    """
    from llguidance import LLMatcher

    if problem := chain_problem(grammar):
        return problem
    library = LLMatcher(byte_tokens().library, grammar, log_level=0, limits=parser_limits())
    error = library.get_error() if library.is_error() else error_of_first_steps(library)
    return shown_reason(error) if error else ""


def parser_limits() -> Any:
    """Return LIMITS as the library's object."""
    from llguidance import LLParserLimits

    return LLParserLimits(**LIMITS)


def bounded(grammar: str) -> str:
    """Return a grammar that is not too long. Raises GrammarError."""
    num_bytes = len(grammar.encode())
    if num_bytes > MAX_GRAMMAR_BYTES:
        raise GrammarError(f"it has {num_bytes} bytes; at most {MAX_GRAMMAR_BYTES} are supported")
    return grammar


def shown_reason(words: str) -> str:
    """Return why a grammar cannot be used: the library's words without its excerpt of the grammar, which is not what
    the client has written."""
    if words.strip() in _MATCHES_NOTHING:
        return "it matches no text"
    words = _EXCERPT.sub("", _PLACE.sub("", words.strip())).replace("<non-verbose/>", "")
    return " ".join(words.split())[:MAX_REASON_CHARACTERS] or "it is not valid"
