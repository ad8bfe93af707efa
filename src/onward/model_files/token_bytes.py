"""The exact bytes of each vocabulary entry, according to the decoder in tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np

BytesOf = Callable[[Sequence[str]], list[bytes]]
"""The bytes that vocabulary entries stand for inside a text."""

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


_MAX_GROWTH = 1000
"""How many times as long a text or a token may become by being rewritten. Those of real tokenizers become three times
as long, by the bytes of ▁."""


class UnknownDecoder(Exception):
    """The tokenizer does not define the bytes of single tokens, or makes endless ones. The message follows "PATH: "."""


class ModelPart(msgspec.Struct):
    """The field of tokenizer.json's `model` that token bytes depend on."""

    byte_fallback: bool = False


class Pipeline(msgspec.Struct):
    """The parts of tokenizer.json that define token bytes; all others are skipped."""

    model: ModelPart
    decoder: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None
    normalizer: dict[str, Any] | None = None


def bytes_function(pipeline: Pipeline) -> BytesOf:
    """Return the function from vocabulary entries, 262,000 of the largest, to their bytes. Raises UnknownDecoder."""
    rules = [step for step in steps_of(pipeline.normalizer, "normalizers") if step["type"] == "Replace"]
    _require_little_growth([(step["pattern"].get("String"), step["content"]) for step in rules])
    steps = steps_of(pipeline.decoder, "decoders")
    kinds = {step["type"] for step in steps}
    if not steps and any(step["type"] == "ByteLevel" for step in steps_of(pipeline.pre_tokenizer, "pretokenizers")):
        kinds = {"ByteLevel"}
    if "ByteLevel" in kinds:
        return _byte_level
    if unknown := kinds - {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip", "BPEDecoder"}:
        raise UnknownDecoder(f"its decoder ({', '.join(sorted(unknown))}) does not define the exact bytes of tokens")
    replacements = [pair for step in steps for pair in _replacements(step)]
    _require_little_growth(replacements)
    return _replacing(replacements, byte_fallback=pipeline.model.byte_fallback or "ByteFallback" in kinds)


def steps_of(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the steps of a decoder, normalizer or pre-tokenizer, with nested sequences flattened."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for inner in part[key] for step in steps_of(inner, key)]
    return [part]


def _require_little_growth(rules: Sequence[tuple[str | None, str]]) -> None:
    """Raise UnknownDecoder for rules, old and new text, that make a text much longer. Old None: a regular expression,
    which is taken to find a letter at least; "" is found between all letters.

    A rule rewrites what an earlier one wrote only if they have a letter in common: a hundred that write two letters for
    a ligature make a text twice as long."""
    anywhere, by_letter = 1, dict[str, int]()
    for old, new in reversed(rules):
        after = max([anywhere, *(by_letter.get(letter, 1) for letter in set(new))])
        growth = max(1, len(new) + (old == "")) * after
        if growth > _MAX_GROWTH:
            raise UnknownDecoder("it makes texts more than a thousand times as long as they are")
        if not old:
            anywhere = max(anywhere, growth)
        by_letter |= {letter: max(growth, by_letter.get(letter, 1)) for letter in old or ""}


def _replacements(step: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the (old, new) texts of a decoder step. Fuse and Strip act on whole texts, not on tokens."""
    if step["type"] == "Metaspace":
        return [(step.get("replacement", _SPACE), " ")]
    if step["type"] == "BPEDecoder":
        return [(step["suffix"], " ")]
    if step["type"] == "Replace":
        if "String" not in step["pattern"]:
            raise UnknownDecoder("its decoder replaces by a regular expression")
        return [(step["pattern"]["String"], step["content"])]
    return []


def _replacing(replacements: list[tuple[str, str]], *, byte_fallback: bool) -> BytesOf:
    def bytes_of(token: str) -> bytes:
        if byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return lambda tokens: [bytes_of(token) for token in tokens]


def byte_characters() -> dict[str, int]:
    """Return GPT-2's printable stand-ins for bytes: printable ones are themselves, the others U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + index): byte for index, byte in enumerate(others)},
    }


_NONE = 256
_BYTE_OF = np.full(0x100 + 256, _NONE, np.uint16)
"""By code point; _NONE for those that stand for no byte, as the last one does."""
for _character, _byte in byte_characters().items():
    _BYTE_OF[ord(_character)] = _byte


def _byte_level(tokens: Sequence[str]) -> list[bytes]:
    """All at once, because one after the other takes longer than reading them: each character is one byte."""
    points = np.frombuffer("".join(tokens).encode("utf-32-le"), "<u4")
    stand_for = _BYTE_OF[np.minimum(points, len(_BYTE_OF) - 1)]
    whole, ends = stand_for.astype(np.uint8).tobytes(), list(accumulate(map(len, tokens), initial=0))
    found = [whole[begin:end] for begin, end in pairwise(ends)]
    # entries that are not written in stand-ins: the library decodes them literally, too
    for index in set(np.searchsorted(ends, np.flatnonzero(stand_for == _NONE), "right").tolist()):
        found[index - 1] = tokens[index - 1].encode()
    return found
