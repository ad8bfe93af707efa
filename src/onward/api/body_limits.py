"""Counts what a large body contains before any of it is built: a parser holds the interpreter lock until it is done.

Sixteen megabytes of `[[1],[1],…]` are four million lists, and building them stops every thread for seconds. The count
needs none of them, and lets other threads run between its steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from onward.api.malformed_json import malformed_json
from onward.errors import InvalidRequest
from onward.offload import breathe

MIN_COUNTED_BYTES = 262_144
"""Smaller bodies are parsed at once: 6 ms at worst, measured for arrays of one number."""
NUM_OTHER_ITEMS = 4096
"""Strings, arrays and objects that a request may have besides its prompts: biases, stops, fields."""
MAX_DEPTH = 1000
"""The parser's own limit, about."""
STEPS_PER_BREATH = 512

# Each step matches so little that it takes a millisecond at most.
_PLAIN = re.compile(rb'[^"\[\]{}]{1,65536}')
"""Numbers, literals, commas, colons and white space."""
_IN_STRING = re.compile(rb'(?:[^"\\]{1,4096}|\\.){1,256}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What a body may contain: as many prompts, and as many token ids in them, as any request may have."""

    max_prompts: int = 16_384
    max_prompt_tokens: int = 524_288

    def check(self, body: bytes) -> None:
        """Raise InvalidRequest for a body with too many values. It need not be JSON, which the parser checks."""
        if len(body) < MIN_COUNTED_BYTES:
            return
        max_items = self.max_prompts + NUM_OTHER_ITEMS
        max_values = self.max_prompt_tokens + max_items
        num_items = num_values = num_steps = depth = position = 0
        while position < len(body):
            num_steps += 1
            if num_steps % STEPS_PER_BREATH == 0:
                breathe()
            if plain := _PLAIN.match(body, position):
                num_values += body.count(b",", position, plain.end())
                if num_values > max_values:
                    raise _too_many(f"{max_values} values", f"{self.max_prompt_tokens} prompt tokens")
                position = plain.end()
                continue
            character = body[position]
            num_items += character in b'"[{'
            depth += (character in b"[{") - (character in b"]}")
            if depth < 0:
                return  # not JSON
            if depth > MAX_DEPTH:
                raise malformed_json(body, RecursionError())
            if num_items > max_items:
                raise _too_many(f"{max_items} strings, arrays and objects", f"{self.max_prompts} prompts")
            position = _string_end(body, position + 1) if character == ord('"') else position + 1


DEFAULT_LIMITS = BodyLimits()


def _string_end(body: bytes, position: int) -> int:
    """Return the position behind the string whose first character is at `position`; the body's end if it is open."""
    num_steps = 0
    while inner := _IN_STRING.match(body, position):
        num_steps += 1
        if num_steps % STEPS_PER_BREATH == 0:
            breathe()
        position = inner.end()
    return position + 1


def _too_many(counted: str, allowed: str) -> InvalidRequest:
    return InvalidRequest(
        f"The body of this request has more than {counted}; this server accepts up to {allowed} per request. Send "
        "several requests."
    )
