"""llguidance's Lark: what is written to it, and what is changed in what clients write."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from onward.constraints.errors import GrammarError

_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|#[^\n]*|/(?:\\.|[^/\\])+/|<[^<>\s]+>', re.DOTALL)
"""Texts, comments, expressions, and last tokens, which are looked for outside of the others."""
_DEFINITION = re.compile(r"^[ \t]*(?:[?!]*[A-Za-z_][\w-]*(?:\[[^\]\n]*\]|::\w+|\.\d+)?[ \t]*:(?!:?=)|%)", re.MULTILINE)

_FIRST_RULE = re.compile(r"^start[ \t]*:", re.MULTILINE)
_FIRST_NAME = re.compile(r"(?<![\w-])start(?![\w-])")
_RENAMED = "text_of_start"

_UNSUPPORTED = {
    "temperature": "set the request's 'temperature'",
    "max_tokens": "bound the text by a repetition, or the completion by 'max_tokens'",
    "stop": "use 'suffix' or 'lazy', or the request's 'stop'",
}
_OPTION = re.compile(rf"\[[^\]\n]*?\b({'|'.join(_UNSUPPORTED)})\s*=")


def is_gbnf(text: str) -> bool:
    """Return whether a grammar is GBNF: it defines rules by `::=`, and none by a colon."""
    return "::=" in text and not _DEFINITION.search(text)


def quoted(text: str) -> str:
    """Return a text in the quotes of Lark, which takes JSON's escapes and neither control characters nor DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def with_tokens(grammar: str, write: Callable[[str], str]) -> str:
    """Return a grammar with `write` of each reference to tokens, such as `<[12]>` or `<|name|>`, in its place."""

    def written(found: re.Match[str]) -> str:
        part = found.group()
        return write(part) if part.startswith("<") else part

    return _PARTS.sub(written, grammar)


def check_options(grammar: str) -> None:
    """Raise GrammarError for options of rules that could not act here, or not as they do elsewhere."""
    found = _OPTION.search(_PARTS.sub('""', grammar))
    if found is not None:
        raise GrammarError(f"the option '{found[1]}' of a rule is not supported: {_UNSUPPORTED[found[1]]}")


def ending_with(grammar: str, tokens: Iterable[int]) -> str:
    """Return the grammar of the same texts, each followed by one of some tokens; "" where that cannot be written,
    because other rules lead to the first one."""
    without = _PARTS.sub('""', grammar)
    if len(_FIRST_RULE.findall(grammar)) != 1 or len(_FIRST_NAME.findall(without)) != 1 or _RENAMED in grammar:
        return ""
    ends = " | ".join(f"<[{token}]>" for token in sorted(tokens))
    header = "" if "%llguidance" in without else "%llguidance {}\n"
    return f"{header}{_FIRST_RULE.sub(f'{_RENAMED}:', grammar)}\nstart: {_RENAMED} ({ends})" if ends else ""
