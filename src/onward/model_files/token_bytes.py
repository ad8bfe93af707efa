"""The exact bytes of each vocabulary entry, according to the decoder in tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

BytesOf = Callable[[str], bytes]
"""The bytes that a vocabulary entry stands for inside a text."""

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnknownDecoder(Exception):
    """The decoder is of a kind that does not define the bytes of single tokens. The message follows "PATH: "."""


class ModelPart(msgspec.Struct):
    """The field of tokenizer.json's `model` that token bytes depend on."""

    byte_fallback: bool = False


class Pipeline(msgspec.Struct):
    """The parts of tokenizer.json that define token bytes; all others are skipped."""

    model: ModelPart
    decoder: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None


def bytes_function(pipeline: Pipeline) -> BytesOf:
    """Return the function from vocabulary entries to their bytes. Raises UnknownDecoder."""
    steps = _steps(pipeline.decoder, "decoders")
    kinds = {step["type"] for step in steps}
    if not steps and any(step["type"] == "ByteLevel" for step in _steps(pipeline.pre_tokenizer, "pretokenizers")):
        kinds = {"ByteLevel"}
    if "ByteLevel" in kinds:
        return _byte_level
    if unknown := kinds - {"Metaspace", "Replace", "ByteFallback", "Fuse", "Strip", "BPEDecoder"}:
        raise UnknownDecoder(f"its decoder ({', '.join(sorted(unknown))}) does not define the exact bytes of tokens")
    replacements = [pair for step in steps for pair in _replacements(step)]
    return _replacing(replacements, byte_fallback=pipeline.model.byte_fallback or "ByteFallback" in kinds)


def _steps(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """Return the steps of a decoder or pre-tokenizer, with nested sequences flattened."""
    if part is None:
        return []
    if part["type"] == "Sequence":
        return [step for inner in part[key] for step in _steps(inner, key)]
    return [part]


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

    return bytes_of


def byte_characters() -> dict[str, int]:
    """Return GPT-2's printable stand-ins for bytes: printable ones are themselves, the others U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {
        **{chr(byte): byte for byte in printable},
        **{chr(0x100 + index): byte for index, byte in enumerate(others)},
    }


_BYTE_OF = byte_characters()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:  # an entry that is not written in stand-ins: the library decodes it literally, too
        return token.encode()
