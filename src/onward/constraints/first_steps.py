"""What is found out about a grammar before it is used: how deep its rules lead, and whether its first steps work."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

MAX_CHAINED_RULES = 500
"""Rules that lead from one to the next: the library follows them on its stack."""
NUM_STEPS = 6
"""Bytes of each text that is tried."""

_RULE = re.compile(r"^[ \t]*[?!]*([A-Za-z_][A-Za-z_0-9.-]*)[ \t]*(?:\[[^\]\n]*\][ \t]*)?:", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9-]*")
_LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)*/')


def chain_problem(grammar: str) -> str:
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


def error_of_first_steps(library: Any) -> str:
    """Return the library's error for the first bytes of three texts that a grammar allows; "" if they are possible.
    Some expressions compile, and exceed a limit at the second byte."""
    for share in (0.0, 0.5, 1.0):
        matcher = library.deep_copy()
        for _ in range(NUM_STEPS):
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            if matcher.is_error():
                return str(matcher.get_error())
            allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:256])
            if matcher.is_stopped() or not len(allowed):
                break
            matcher.consume_token(int(allowed[int((len(allowed) - 1) * share)]))
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
