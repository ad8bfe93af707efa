"""Grammars as llguidance reads them: Lark, with JSON schemas and regular expressions inside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from onward.constraints.errors import GrammarError
from onward.constraints.first_steps import chain_problem, error_of_first_steps
from onward.constraints.gbnf.write import gbnf_to_lark
from onward.constraints.lark import check_options, is_gbnf, quoted, with_tokens
from onward.constraints.reasons import shown_reason
from onward.constraints.references import ReferenceTable, writer
from onward.constraints.tokens import ANY_TOKEN, byte_tokens

MAX_GRAMMAR_BYTES = 65_536
"""Longest grammar, schema or list of choices, in bytes of UTF-8."""
MAX_WRITTEN_BYTES = 4 * MAX_GRAMMAR_BYTES
"""Longest grammar that is generated from one."""
MAX_CHECKED_GRAMMARS = 64
DEFAULT_WHITESPACE = "[ ]?"
"""Between the tokens of JSON: nothing or a space. JSON allows more, but a small model that may write white space
forever often does."""
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
STEP_LIMITS: dict[str, Any] = LIMITS | {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 15_000,
    "step_max_items": 4_000,
    "max_grammar_size": 2_000,
}
"""Limits on the thread of an engine's steps: a token, or the text that it forces, takes at most about five
milliseconds. What exceeds them is computed on another thread, with LIMITS."""

MAX_GROUPS = 200
"""Levels of groups in a regular expression: the library reads 250 of groups and repetitions."""
_GROUP = re.compile(r"\\.|[()]", re.DOTALL)
_SLASH = re.compile(r"\\.|/", re.DOTALL)


def regex_grammar(pattern: str) -> str:
    """Return the grammar of the texts that match a regular expression as a whole. Raises GrammarError."""
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise GrammarError("it ends with a backslash, which escapes nothing; write \\\\ for a backslash")
    if _depth(pattern) > MAX_GROUPS:
        raise GrammarError(f"its groups are nested too deeply; at most {MAX_GROUPS} levels are supported")
    escaped = _SLASH.sub(lambda found: found.group() if len(found.group()) > 1 else "\\/", pattern)
    return bounded(f"start: /{escaped}/" if pattern else choice_grammar([""]))


def _depth(pattern: str) -> int:
    """Return how deep groups are nested at most; parentheses in sets count, too."""
    depth = deepest = 0
    for found in _GROUP.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(found.group(), 0)
        deepest = max(deepest, depth)
    return deepest


def choice_grammar(choices: Sequence[str]) -> str:
    """Return the grammar of some texts. Raises GrammarError."""
    return bounded("start: " + " | ".join(map(quoted, choices)))


def text_grammar(text: str, references: ReferenceTable) -> str:
    """Return the grammar that a text describes: in llguidance's Lark, or in GBNF, llama.cpp's notation. `references`
    has the tokens that it may name. Raises GrammarError."""
    bounded(text)
    if is_gbnf(text):
        return bounded(gbnf_to_lark(text, writer(references)), MAX_WRITTEN_BYTES)
    check_options(text)
    return bounded(with_tokens(text, writer(references)), MAX_WRITTEN_BYTES)


@lru_cache(maxsize=MAX_CHECKED_GRAMMARS)
def check(grammar: str) -> str:
    """Return why a grammar cannot be compiled; "" if it can. May take a second, mostly without
    the interpreter lock.

    The vocabulary is that of all bytes: an engine may still refuse the grammar, because its tokens are longer.
    """
    from llguidance import LLMatcher

    if problem := chain_problem(grammar):
        return problem
    checked = with_tokens(grammar, lambda reference: f"<[{ANY_TOKEN}]>")
    library = LLMatcher(byte_tokens().library, checked, log_level=0, limits=parser_limits())
    error = library.get_error() if library.is_error() else error_of_first_steps(library)
    return shown_reason(error).replace(f"<[{ANY_TOKEN}]>", "<token>") if error else ""


def parser_limits(limits: dict[str, Any] = LIMITS) -> Any:
    """Return limits as the library's object."""
    from llguidance import LLParserLimits

    return LLParserLimits(**limits)


def bounded(grammar: str, most: int = MAX_GRAMMAR_BYTES) -> str:
    """Return a grammar that has at most so many bytes. Raises GrammarError."""
    try:
        num_bytes = len(grammar.encode())
    except UnicodeEncodeError:
        raise GrammarError("it has half of a surrogate pair, which is not a character") from None
    if num_bytes > most:
        raise GrammarError(f"it has {num_bytes} bytes; at most {most} are supported")
    return grammar
