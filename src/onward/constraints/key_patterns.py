"""`patternProperties` whose names all have properties of their own: the library would begin a name that cannot end."""

from __future__ import annotations

import json
from typing import Any

from onward.constraints.grammar import parser_limits
from onward.constraints.tokens import byte_tokens

Schema = dict[str, Any]

_MATCHES_NONE = "Regex is empty"
"""The library's words for a pattern that no name matches."""


def remove_exhausted_patterns(schema: Schema) -> None:
    """Remove the patterns of a schema that no other name can match than those of its properties, which get what the
    pattern demands."""
    patterns, properties = schema.get("patternProperties"), schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(patterns, dict) or not isinstance(properties, dict) or not isinstance(required, list):
        return
    names = {*properties, *(name for name in required if isinstance(name, str))}
    for pattern in list(patterns):
        matching = _only_names(pattern, names)
        if matching is None:
            continue
        demanded = patterns.pop(pattern)
        schema["properties"] = properties = dict(properties)
        for name in matching:
            properties[name] = {"allOf": [properties[name], demanded]} if name in properties else demanded
    if not patterns:
        del schema["patternProperties"]


def _only_names(pattern: str, names: set[str]) -> set[str] | None:
    """Return the names that match a pattern if there are no others than `names`; None if there may be."""
    from llguidance import LLMatcher

    tokens = byte_tokens()
    grammar = f"start: %json {json.dumps({'type': 'string', 'pattern': pattern})}"
    first = LLMatcher(tokens.library, grammar, log_level=0, limits=parser_limits())
    if first.is_error():
        return set() if _MATCHES_NONE in first.get_error() else None
    found: set[str] = set()
    alive: list[tuple[Any, bytes]] = [(first, b"")]
    while alive:
        longer: list[tuple[Any, bytes]] = []
        for matcher, text in alive:
            if matcher.is_accepting():
                found.add(json.loads(text))
                continue
            mask = int.from_bytes(matcher.compute_bitmask(), "little")
            allowed = [byte for byte in range(256) if mask >> byte & 1]
            if matcher.is_error() or len(longer) + len(allowed) + len(found) > len(names) + 1:
                return None
            for byte in allowed:
                copy = matcher.deep_copy()
                copy.consume_token(byte)
                longer.append((copy, text + bytes([byte])))
        alive = longer
    return found if found <= names else None
