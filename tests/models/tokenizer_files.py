"""Tiny GGUF files whose tokenizers can encode any text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoints.making import write_gguf
from tests.checkpoints.tiny import tiny

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
START, END = "<|begin|>", "<|finish|>"


def _stand_ins() -> list[str]:
    """GPT-2's characters for bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


BYTES = _stand_ins()
SPACE = BYTES[32]
MERGES = (
    "t h", "th e", f"{SPACE} the", "1 2", "12 3", "123 4", "3 4", f"{SPACE} a", "a n", "an d", "h e", "! !", "1 ,",
    "a !", f"{SPACE} {SPACE}",
)  # fmt: skip
Token = tuple[str, int]


def byte_level(more: Sequence[Token] = (), merges: Sequence[str] = MERGES, **stated: Any) -> dict[str, Any]:
    """Metadata of a byte-level tokenizer: the bytes, what the merges make, `more`, a start and an end token. `stated`
    are further keys; None removes one."""
    tokens = list(dict.fromkeys([*BYTES, *(line.replace(" ", "") for line in merges)]))
    kinds = [NORMAL] * len(tokens)
    for text, kind in (*more, (START, CONTROL), (END, CONTROL)):
        tokens.append(text)
        kinds.append(kind)
    found = {
        "model": "gpt2", "pre": "qwen2", "tokens": tokens, "token_type": kinds, "merges": list(merges),
        "bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 1, **stated,
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in found.items() if value is not None}


SENTENCES = ("▁", "h", "e", "i", "he", "▁he", "l", "o", "lo", "hi", "▁hi", "n", "▁▁")


def sentence_piece(more: Sequence[Token] = (), **stated: Any) -> dict[str, Any]:
    """Metadata of a SentencePiece tokenizer: three special tokens, the bytes, some words, and `more`."""
    rows: list[Token] = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    rows += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    rows += [*((text, NORMAL) for text in SENTENCES), *more]
    found = {
        "model": "llama", "tokens": [text for text, _ in rows], "token_type": [kind for _, kind in rows],
        "scores": [-float(number) for number in range(len(rows))], **stated,
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in found.items() if value is not None}


LINES = ("h e", "l l", "▁ he", "he ll", "hell o", "▁ ▁", "\n \n")


def merged_lines(more: Sequence[Token] = (), **stated: Any) -> dict[str, Any]:
    """Metadata of a tokenizer like Gemma 4's: special tokens, the bytes, characters, what the merges make, a run of
    line breaks that no merge makes, and `more`."""
    rows: list[Token] = [("<pad>", CONTROL), ("<eos>", CONTROL), ("<bos>", CONTROL), ("<unk>", UNKNOWN)]
    rows += [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    texts = [*"▁helo\n", *(line[:1] + line[1:].replace(" ", "", 1) for line in LINES), "\n\n\n"]
    rows += [*((text, NORMAL) for text in texts), ("<|turn>", USER_DEFINED), *more]
    found = {
        "model": "gemma4", "tokens": [text for text, _ in rows], "token_type": [kind for _, kind in rows],
        "scores": [-float(number) for number in range(len(rows))], "merges": list(LINES), "add_space_prefix": False,
        "bos_token_id": 2, "eos_token_id": 1, "unknown_token_id": 3, "padding_token_id": 0, **stated,
    }  # fmt: skip
    return {f"tokenizer.ggml.{name}": value for name, value in found.items() if value is not None}


def model_with(folder: Path, tokenizer: dict[str, Any], **general: Any) -> Path:
    """A tiny Llama with this tokenizer."""
    metadata, tensors = tiny("llama")
    kept = {name: value for name, value in metadata.items() if not name.startswith("tokenizer.")}
    hidden = tensors["token_embd.weight"].shape[1]
    rows = len(tokenizer["tokenizer.ggml.tokens"])
    random = np.random.default_rng(5)
    tensors["token_embd.weight"] = random.normal(size=(rows, hidden)).astype(np.float32)
    kept |= {f"general.{name}": value for name, value in general.items()} | tokenizer
    return write_gguf(folder / "m.gguf", kept, tensors)
