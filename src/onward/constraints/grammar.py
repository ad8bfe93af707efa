"""Grammars as llguidance reads them: Lark, with JSON schemas and regular expressions inside; and their check before
they are used: how deep rules lead, and whether the first steps work."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from onward.constraints.errors import GrammarError
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
MAX_CHAINED_RULES = 500
"""Rules that lead from one to the next: the library follows them on its stack."""
NUM_STEPS = 6
"""Bytes of each text that is tried before a grammar is used."""
_RULE = re.compile(r"^[ \t]*[?!]*([A-Za-z_][A-Za-z_0-9.-]*)[ \t]*(?:\[[^\]\n]*\][ \t]*)?:", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9-]*")
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)*/')
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
    """Return why a grammar cannot be compiled; "" if it can. May take a second, mostly without the interpreter lock.

    The vocabulary is that of all bytes: an engine may still refuse the grammar, because its tokens are longer.
    """
    from llguidance import LLMatcher

    if problem := _chain_problem(grammar):
        return problem
    checked = with_tokens(grammar, lambda reference: f"<[{ANY_TOKEN}]>")
    library = LLMatcher(byte_tokens().library, checked, log_level=0, limits=parser_limits())
    error = library.get_error() if library.is_error() else _error_of_first_steps(library)
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


def _chain_problem(grammar: str) -> str:
    """Return why a grammar in Lark is nested too deeply; "" if it is not."""
    uses = _uses(grammar)
    depths: dict[str, int] = {}
    for start in uses:
        trail: list[tuple[str, list[str]]] = [(start, list(uses[start]))] if start not in depths else []
        inside = {start}
        while trail:
            name, left = trail[-1]
            if len(trail) > MAX_CHAINED_RULES:
                return f"its rules are nested too deeply; at most {MAX_CHAINED_RULES} may lead from one to the next"
            if not left:
                trail.pop()
                inside.discard(name)
                depths[name] = 1 + max((depths.get(used, 0) for used in uses[name]), default=0)
                if depths[name] > MAX_CHAINED_RULES:
                    return f"its rules are nested too deeply; at most {MAX_CHAINED_RULES} may lead from one to the next"
                continue
            used = left.pop()
            if used not in depths and used not in inside:
                inside.add(used)
                trail.append((used, list(uses[used])))
    return ""


def _error_of_first_steps(library: Any) -> str:
    """Return the library's error for the first bytes of three texts that a grammar allows; "" if they are possible.
    Some expressions compile, and exceed a limit at the second byte."""
    for share in (0.0, 0.5, 1.0):
        matcher = library.deep_copy()
        for _ in range(NUM_STEPS):
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_error():
                return str(matcher.get_error())
            allowed = [byte for byte in range(256) if mask >> byte & 1]
            if matcher.is_stopped() or not allowed:
                break
            matcher.consume_token(allowed[int((len(allowed) - 1) * share)])
            if matcher.is_error():
                return str(matcher.get_error())
    return ""


def _uses(grammar: str) -> dict[str, set[str]]:
    """Return the rules that each rule names."""
    without = _LITERAL.sub(" ", grammar)
    found = list(_RULE.finditer(without))
    names = {each[1].split(".")[0] for each in found}
    uses: dict[str, set[str]] = {name: set() for name in names}
    for index, each in enumerate(found):
        end = found[index + 1].start() if index + 1 < len(found) else len(without)
        uses[each[1].split(".")[0]] |= names.intersection(_NAME.findall(without, each.end(), end))
    return uses
