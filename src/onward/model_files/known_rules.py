"""Which tokenizers encode any text in time and memory that grow as its length does.

A tokenizer.json comes from strangers, and its rules are programs: a regular expression that backtracks, replacements
that multiply. Those that published models have are known here. All others are used, too, where they may die
(`tokenizer_process`).
"""

from __future__ import annotations

from typing import Any

from onward.checkpoints.pretokenizers import CONTRACTIONS, PRE_TOKENIZERS
from onward.model_files.token_bytes import steps_of

Rules = dict[str, Any]
"""A normalizer or a pre-tokenizer as tokenizer.json states it."""
_MAX_STEPS = 16
"""Of a sequence. The longest ones of published models have eight."""
_MAX_LITERAL = 16
"""Characters of a text that is looked for, or put in its place."""
_NORMALIZERS = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "ByteLevel"})
_PRE_TOKENIZERS = frozenset(
    {"ByteLevel", "Metaspace", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer",
     "CharDelimiterSplit", "UnicodeScripts"}
)  # fmt: skip
_WRITTEN_CONTRACTIONS = ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)")
"""How folders write them; GGUF's rules, which all programs have to read, have no flags inside."""
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""OpenAI's own, with quantifiers that never give back."""
_EXPRESSIONS = frozenset(
    {
        *(pattern for rule in PRE_TOKENIZERS.values() for pattern in rule.patterns),
        *(
            pattern.replace(CONTRACTIONS, written)
            for rule in PRE_TOKENIZERS.values()
            for pattern in rule.patterns
            for written in _WRITTEN_CONTRACTIONS
        ),
        _CL100K,
        _CL100K.replace(r"\p{N}{1,3}", r"\p{N}"),
        *(r"\d", r"\d+", r"\d{1,3}", r"\p{N}{1,3}", r"\s+", r"\n", r"[\r\n]+", " ", " {2,}"),
    }
)


def are_known(normalizer: Rules | None, pre_tokenizer: Rules | None) -> bool:
    """Return whether any text is rewritten and cut in time and memory that grow as it does. Raises as `steps_of`."""
    rewriting, cutting = steps_of(normalizer, "normalizers"), steps_of(pre_tokenizer, "pretokenizers")
    if max(len(rewriting), len(cutting)) > _MAX_STEPS:
        return False
    if sum(step["type"] == "ByteLevel" for step in (*rewriting, *cutting)) > 1:  # each doubles what is not ASCII
        return False
    return all(map(_is_known_normalizer, rewriting)) and all(map(_is_known_pre_tokenizer, cutting))


def _is_known_normalizer(step: Rules) -> bool:
    match step:
        case {"type": "Prepend", "prepend": str(text)}:
            return len(text) <= _MAX_LITERAL
        case {"type": "Replace", "pattern": pattern, "content": str(text)}:
            return _is_known_pattern(pattern) and len(text) <= len(pattern.get("String", " "))
    return step["type"] in _NORMALIZERS


def _is_known_pre_tokenizer(step: Rules) -> bool:
    match step:
        case {"type": "Split", "pattern": pattern}:
            return _is_known_pattern(pattern)
    return step["type"] in _PRE_TOKENIZERS


def _is_known_pattern(pattern: Any) -> bool:
    match pattern:
        case {"String": str(text)} if len(pattern) == 1:
            return 0 < len(text) <= _MAX_LITERAL
        case {"Regex": str(expression)} if len(pattern) == 1:
            return expression in _EXPRESSIONS
    return False
