"""A folder with `tokenizer.model` and no tokenizer.json, as older checkpoints have it: as the files that it lacks."""

from __future__ import annotations

from pathlib import Path

from onward.checkpoints.parameters import Parameters
from onward.checkpoints.sentencepiece import MAX_MODEL_BYTES, read_sentence_piece
from onward.checkpoints.token_kinds import CONTROL, USER_DEFINED
from onward.checkpoints.tokenizer import TokenizerFiles, tokenizer_files
from onward.errors import CheckpointError, ModelFolderError
from onward.runtimes.files import (
    ADDED_TOKENS,
    SENTENCE_PIECE,
    TOKENIZER_CONFIG,
    has_sentence_piece_only,
    read_bounded,
    read_object,
)

_MAX_DIGITS = 10
"""Of a token id."""


def sentence_piece_files(folder: Path) -> TokenizerFiles:
    """Return the tokenizer of a folder, with the tokens that its configuration adds. Raises ModelFolderError."""
    path = folder / SENTENCE_PIECE
    found = read_sentence_piece(read_bounded(path, MAX_MODEL_BYTES), str(path))
    for token, (text, kind) in sorted(_added(folder).items()):
        if token == len(found.tokens):
            found.add(text, 0.0, kind)
        elif token > len(found.tokens) or found.tokens[token] != text:
            raise CheckpointError(
                f"{folder} adds the token {text[:40]!r} as {token}, where {SENTENCE_PIECE} has another one, or none "
                f"before it (it has {len(found.tokens)}): copy or download the folder again."
            )
        elif kind == CONTROL:
            found.kinds[token] = CONTROL
    return tokenizer_files(Parameters({"general.architecture": SENTENCE_PIECE, **found.metadata()}, str(path)))


def sentence_piece_problem(folder: Path) -> str | None:
    """Return what is wrong with the folder's tokenizer.model, None if it can be used, or is not needed."""
    try:
        if has_sentence_piece_only(folder):
            sentence_piece_files(folder)
    except ModelFolderError as problem:
        return str(problem)
    return None


def _added(folder: Path) -> dict[int, tuple[str, int]]:
    """Return text and kind of the tokens that the folder's configuration adds or names, by id."""
    found: dict[int, tuple[str, int]] = {}
    for text, token in read_object(folder / ADDED_TOKENS).items():
        if type(token) is int and token >= 0:
            found[token] = text, USER_DEFINED
    named = read_object(folder / TOKENIZER_CONFIG).get("added_tokens_decoder")
    for number, entry in (named if isinstance(named, dict) else {}).items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if isinstance(content, str) and number.isdecimal() and len(number) < _MAX_DIGITS:
            found[int(number)] = content, CONTROL if entry.get("special") else USER_DEFINED
    return found
