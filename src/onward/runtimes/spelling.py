"""The exact bytes that a vocabulary entry stands for, by the decoder that tokenizer.json describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

Spell = Callable[[str], bytes]

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnknownSpelling(Exception):
    """The decoder is of a kind whose bytes cannot be told token by token."""


class ModelPart(msgspec.Struct):
    byte_fallback: bool = False


class Pipeline(msgspec.Struct):
    """The parts of tokenizer.json that say how tokens are spelled; what else it holds is skipped."""

    model: ModelPart
    decoder: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


def spelling_of(pipeline: Pipeline) -> Spell:
    """How the vocabulary's entries are spelled. Raises UnknownSpelling."""
    steps = _flat(pipeline.decoder, "decoders")
    kinds = {step["type"] for step in steps}
    if not steps and any(s["type"] == "ByteLevel" for s in _flat(pipeline.pre_tokenizer, "pretokenizers")):
        kinds = {"ByteLevel"}
    if "ByteLevel" in kinds:
        return _byte_level
    if unknown := kinds - {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip", "BPEDecoder"}:
        raise UnknownSpelling(f"its decoder ({', '.join(sorted(unknown))}) does not tell the exact bytes of tokens")
    replacements = [pair for step in steps for pair in _replacements(step)]
    return _replacing(replacements, byte_fallback=pipeline.model.byte_fallback or "ByteFallback" in kinds)


def _flat(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A decoder or pre-tokenizer as the list of its steps, sequences within sequences opened."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for inner in part[key] for step in _flat(inner, key)]
    return [part]


def _replacements(step: dict[str, Any]) -> list[tuple[str, str]]:
    """What a decoder step puts for what. Fuse and Strip act on whole texts, not on tokens."""
    if step["type"] == "Metaspace":
        return [(step.get("replacement", _SPACE), " ")]
    if step["type"] == "BPEDecoder":
        return [(step["suffix"], " ")]
    if step["type"] == "Replace":
        if "String" not in step["pattern"]:
            raise UnknownSpelling("its decoder replaces by a regular expression")
        return [(step["pattern"]["String"], step["content"])]
    return []


def _replacing(replacements: list[tuple[str, str]], *, byte_fallback: bool) -> Spell:
    def spell(token: str) -> bytes:
        if byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return spell


def _byte_characters() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes: those that print stand for themselves, the others from U+0100 on."""
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printing]
    return {
        **{chr(byte): byte for byte in printing},
        **{chr(0x100 + place): byte for place, byte in enumerate(others)},
    }


_BYTE_OF = _byte_characters()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:  # an entry that was not written in stand-ins: the library decodes it literally, too
        return token.encode()
