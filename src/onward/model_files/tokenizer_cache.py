"""Tokenizers that were built from a model file's metadata, kept for the next start: 262,000 tokens take two seconds."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from onward.checkpoints.cursor import Strings
from onward.checkpoints.json_files import read_bounded
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.tokenizer import (
    NEEDS_ENCODER,
    TokenizerFiles,
    sentence_piece_encoder,
    strips_space,
    tokenizer_files,
)
from onward.errors import ModelFolderError
from onward.model_files.files import MAX_TOKENIZER_BYTES, write_whole
from onward.model_files.tokenizer import HuggingFaceTokenizer, TokenizerContent
from onward.model_files.vocabulary import PackedVocabulary

FOLDER = "tokenizers"
"""In the cache folder."""
REVISION = 10
"""Raised with every change that may change a tokenizer that is built from metadata, or the bytes of its tokens."""
MAX_FILES = 16
"""Of the cache: at most about 25 MB each. The ones written first are removed."""
_DIGEST_BYTES = 32
_PREFIX = "tokenizer."
"""Begins the names of all metadata that a tokenizer is built from."""


class _Kept(msgspec.Struct, frozen=True, array_like=True):
    """A file of the cache."""

    files: TokenizerFiles
    vocabulary: bytes
    """PackedVocabulary, encoded: to ask the library for all tokens takes as long as it takes to read them."""


def cached_tokenizer(path: Path, parameters: Parameters, cache_dir: Path | None) -> HuggingFaceTokenizer:
    """Return the tokenizer that the metadata of a model's file describe, from the cache if it was built before. `path`
    is for messages.

    Best effort: what cannot be read or written costs time only. Raises CheckpointError, ModelFolderError.
    """
    kept_at = None if cache_dir is None else cache_dir / FOLDER / _key(parameters)
    found = None if kept_at is None else _read(kept_at)
    if found is not None:
        return _tokenizer(path, parameters, found.files, PackedVocabulary.decode(found.vocabulary))
    files = tokenizer_files(parameters)
    tokenizer = _tokenizer(path, parameters, files)
    if kept_at is not None and kept_at.name == _key(parameters):  # the file was not written to meanwhile
        _write(kept_at, _Kept(files, tokenizer.packed.encode()))
    return tokenizer


def _tokenizer(
    path: Path, parameters: Parameters, files: TokenizerFiles, packed: PackedVocabulary | None = None
) -> HuggingFaceTokenizer:
    names = {**files.configuration, "chat_template": parameters.whole("tokenizer.chat_template")}
    encode = sentence_piece_encoder(parameters) if files.configuration[NEEDS_ENCODER] else None
    return HuggingFaceTokenizer(TokenizerContent(path, files.tokenizer, names, [files.generation], encode, packed))


def _key(parameters: Parameters) -> str:
    """Return a digest of everything that the tokenizer is built from. Arrays, which a file may have of any size, are
    not copied."""
    digest = hashlib.sha256(msgspec.msgpack.encode([REVISION, strips_space(parameters)]))
    for name in sorted(name for name in parameters.metadata if name.startswith(_PREFIX)):
        value = parameters.metadata[name]
        if isinstance(value, np.ndarray):
            digest.update(msgspec.msgpack.encode([name, value.dtype.str, len(value)]))
            digest.update(value.view(np.uint8).data)
        elif isinstance(value, Strings):
            digest.update(msgspec.msgpack.encode([name, len(value), len(value.stored)]))
            digest.update(value.stored)
        else:
            digest.update(msgspec.msgpack.encode([name, value]))
    return digest.hexdigest()


def _read(path: Path) -> _Kept | None:
    """Return what was written to a file, None if it is missing or not as it was written."""
    with suppress(ModelFolderError, msgspec.MsgspecError):
        content = memoryview(read_bounded(path, MAX_TOKENIZER_BYTES))
        if hashlib.sha256(content[_DIGEST_BYTES:]).digest() == content[:_DIGEST_BYTES]:
            return msgspec.msgpack.decode(content[_DIGEST_BYTES:], type=_Kept)
    return None


def _write(path: Path, kept: _Kept) -> None:
    """Write a file, all of it or nothing, after a digest of its content."""
    content = msgspec.msgpack.encode(kept)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_room(path.parent)
        write_whole(path, hashlib.sha256(content).digest() + content)


def _make_room(folder: Path) -> None:
    found = sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime)
    for old in found[: max(0, len(found) - MAX_FILES + 1)]:
        old.unlink(missing_ok=True)
