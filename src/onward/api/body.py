"""A request body as JSON: what is wrong with one that is not JSON, and how much one may contain.

A parser holds the interpreter lock until it is done: sixteen megabytes of `[[1],[1],…]` are four million lists, and
building them stops every thread for seconds. So values are counted before any is built; the count lets other threads
run between its steps.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from dataclasses import dataclass

import msgspec

from onward.api import refusals
from onward.errors import InvalidRequest, UnreadableBody
from onward.offload import breathe

_AT_BYTE = re.compile(r"JSON is malformed: (.*) \(byte (\d+)\)")
"""A message of msgspec.DecodeError. The byte is the offending one, or the next one."""
_HALF = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})")
"""The first half of a surrogate pair without the second: msgspec may say that the text ends there."""
_REASONS = {
    "Input data was truncated": "it ends before the JSON is complete",
    "Number out of range": "it contains a number that is out of range",
    "Integer value out of range": "it contains a number that is out of range",
}


def malformed_json(body: bytes, exception: Exception) -> UnreadableBody:
    """Return the error for a body that msgspec could not decode, with the reason and the position.

    `exception` is msgspec's DecodeError, a UnicodeDecodeError or a RecursionError.
    """
    return UnreadableBody(f"We could not parse the JSON body of your request: {_reason(body, exception)}.")


def _reason(body: bytes, exception: Exception) -> str:
    if not body.strip():
        return "it is empty"
    if isinstance(exception, RecursionError):
        return "its arrays and objects are nested too deeply"
    try:
        body.decode()
    except UnicodeDecodeError as error:  # msgspec counts from the beginning of the string
        return f"it is not valid UTF-8 at {_position(body, error.start)}"
    if str(exception).startswith("Input data was truncated") and _HALF.search(body):
        return "half of a surrogate pair is not a character"
    if match := _AT_BYTE.fullmatch(str(exception)):
        reason = match[1].replace("keys must be strings", "keys must be strings in double quotes")
        return f"{reason} near {_position(body, int(match[2]))}"
    return next((reason for start, reason in _REASONS.items() if str(exception).startswith(start)), "it is not JSON")


def _position(body: bytes, index: int) -> str:
    """Return line and column of the byte at `index`, both from 1; the column counts code points."""
    before = body[:index]
    line_start = before.rfind(b"\n") + 1
    line = before.count(b"\n") + 1
    return f"line {line}, column {len(before[line_start:].decode(errors='replace')) + 1}"


MIN_COUNTED_BYTES = 262_144
"""Smaller bodies are parsed at once: 6 ms at worst, measured for arrays of one number."""
NUM_OTHER_ITEMS = 4096
"""Strings, arrays and objects that a request may have besides its prompts: biases, stops, fields."""
MAX_DEPTH = 1000
"""About the parser's own limit."""
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
    """Return the position after the string whose first character is at `position`; the body's end if it is open."""
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


def decode_object(body: bytes, limits: BodyLimits = DEFAULT_LIMITS) -> dict[str, object]:
    """Return the fields of a JSON object; the last of repeated keys wins, a byte order mark is skipped. Raises
    InvalidRequest."""
    body = body.removeprefix(BOM_UTF8)
    limits.check(body)
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed_json(body, error) from None
    if type(value) is not dict:
        raise refusals.not_an_object(value)
    return value
