"""tekken.json, Mistral's vocabulary, by GGUF's names: special tokens, then the others as bytes, by rank
(mistral-common, tokens/tokenizers/tekken.py)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from pathlib import Path

import msgspec

from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.json_files import read_bounded
from onward.checkpoints.pretokenizers import PRE_TOKENIZERS
from onward.checkpoints.tokenizer import merges_of_scores
from onward.checkpoints.types import CONTROL, NORMAL, USER_DEFINED
from onward.checkpoints.vocabulary import require_few_characters
from onward.errors import ModelFolderError
from onward.model_files.files import MAX_TOKENIZER_BYTES
from onward.model_files.token_bytes import byte_characters

MAX_TOKENS = 1 << 20
"""Of a vocabulary: several times the largest known one."""
_RULE = "tekken"
_SPECIALS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""Of older files, which do not state them."""
_START, _END = "<s>", "</s>"


class _Token(msgspec.Struct):
    rank: int
    token_bytes: str


class _Special(msgspec.Struct):
    rank: int
    token_str: str
    is_control: bool = True


class _Config(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _File(msgspec.Struct):
    config: _Config
    vocab: list[_Token]
    special_tokens: list[_Special] | None = None


def tekken_metadata(path: Path) -> dict[str, MetadataValue]:
    """Return what a file states, with the merges that its ranks mean. Slow: a second. Raises ModelFolderError."""
    found = _read(path)
    specials, kinds = _special_tokens(found, path)
    count = found.config.default_vocab_size - found.config.default_num_special_tokens
    ordinary = texts_by_rank(((each.rank, each.token_bytes) for each in found.vocab if each.rank < count), count, path)
    return {
        **ranked_metadata([*specials, *ordinary], kinds + [NORMAL] * count, _RULE, path),
        **{f"tokenizer.ggml.{name}_token_id": specials.index(text) for name, text in (("bos", _START), ("eos", _END))},
    }


def ranked_metadata(tokens: list[str], kinds: list[int], rule: str, path: Path) -> dict[str, MetadataValue]:
    """Return a byte-level tokenizer by GGUF's names, of whose tokens those of lower ids are merged first. Slow: a
    second. Raises ModelFolderError."""
    require_few_characters(tokens, str(path))
    merges = merges_of_scores(tokens, kinds, [-token for token in range(len(tokens))]).pairs
    return {
        "general.architecture": path.name,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
    }


def _read(path: Path) -> _File:
    content = read_bounded(path, MAX_TOKENIZER_BYTES)
    if content.count(b"{") > MAX_TOKENS:
        raise ModelFolderError(f"{path} has more entries than any vocabulary: download it again.")
    try:
        found = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFolderError(f"{path} is not a vocabulary of Mistral's ({error}): download it again.") from None
    if found.config.pattern != PRE_TOKENIZERS[_RULE].patterns[0]:
        raise ModelFolderError(f"{path} cuts text by a rule ('pattern') that Onward does not know.")
    return found


def _special_tokens(found: _File, path: Path) -> tuple[list[str], list[int]]:
    """Return texts and kinds of the first tokens."""
    stated, count = found.special_tokens, found.config.default_num_special_tokens
    if stated is None:
        stated = [_Special(rank, text) for rank, text in enumerate(_SPECIALS)]
    if found.config.default_vocab_size > MAX_TOKENS:
        raise ModelFolderError(f"{path} states more tokens than any vocabulary has: download it again.")
    if not len(stated) <= count < found.config.default_vocab_size:
        raise ModelFolderError(f"{path} has {len(stated)} special tokens instead of {count}: download it again.")
    texts = [f"<SPECIAL_{token}>" for token in range(count)]
    kinds = [CONTROL] * count
    for each in stated:
        if not 0 <= each.rank < len(stated):
            raise ModelFolderError(f"{path} has gaps in its special tokens: download it again.")
        texts[each.rank], kinds[each.rank] = each.token_str, CONTROL if each.is_control else USER_DEFINED
    if len(set(texts)) < count or not {_START, _END} <= set(texts):
        raise ModelFolderError(f"{path} has a special token twice, or none for start or end: download it again.")
    return texts, kinds


def texts_by_rank(encoded: Iterable[tuple[int, str | bytes]], count: int, path: Path) -> list[str]:
    """Return tokens as printable stand-ins of their bytes, of which each has a rank below `count` and its bytes in
    base64. Raises ModelFolderError."""
    stand_ins = {byte: character for character, byte in byte_characters().items()}
    try:
        texts = {
            rank: "".join(stand_ins[byte] for byte in base64.b64decode(token, validate=True)) for rank, token in encoded
        }
    except (binascii.Error, ValueError):
        raise ModelFolderError(f"{path} has a token that is not written in base64: download it again.") from None
    if texts.keys() != set(range(count)) or len(set(texts.values())) < count or "" in texts.values():
        raise ModelFolderError(f"{path} has gaps in its ranks, or tokens twice: download it again.")
    return [texts[rank] for rank in range(count)]
