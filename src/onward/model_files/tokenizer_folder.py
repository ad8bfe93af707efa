"""Folders without tokenizer.json: `tokenizer.model`, `tekken.json`, `tiktoken.model`, or `vocab.json` and `merges.txt`,
as the files that they lack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from onward.checkpoints.config import of_texts
from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.json_files import read_bounded
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.sentencepiece import ADVICE, MAX_MODEL_BYTES, SentencePieces, read_sentence_piece
from onward.checkpoints.sentencepiece_encoder import EncodeText, SentencePieceEncoder, around, needs_encoder
from onward.checkpoints.table import MODEL_TYPES
from onward.checkpoints.tokenizer import TokenizerFiles, tokenizer_files
from onward.checkpoints.types import CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from onward.errors import CheckpointError, ModelFolderError
from onward.model_files.files import (
    ADDED_TOKENS,
    CONFIG,
    GENERATION_CONFIG,
    MAX_TOKENIZER_BYTES,
    MERGES,
    SENTENCE_PIECE,
    SPECIAL_TOKENS,
    TEKKEN,
    TIKTOKEN,
    TOKENIZER,
    TOKENIZER_CONFIG,
    VOCABULARY,
    read_if_present,
    tokenizer_source,
)
from onward.model_files.tekken import tekken_metadata
from onward.model_files.tiktoken import tiktoken_metadata

MAX_ENTRIES = 1 << 20
"""Of vocab.json, and lines of merges.txt: twice the largest known ones."""
_MAX_DIGITS = 10
"""Of a token id."""
_STARTING_CLASSES = ("Llama", "CodeLlama", "Gemma", "InternLM2", "InternLM3")
"""Classes of transformers, or of models' own code, for tokenizer.model that put the start token before every text;
others do not."""
_OF_GPT2 = ("gpt2", "gptj", "gpt_bigcode", "opt", "starcoder2")
"""Model types whose class of transformers is GPT-2's for vocab.json and merges.txt."""
_START_OF_GPT2 = "<|endoftext|>"
"""Where a folder names none."""


@dataclass(frozen=True, slots=True)
class MadeTokenizer:
    """The files that a folder lacks. `encode`: what turns texts into tokens where the library cannot."""

    files: TokenizerFiles
    encode: EncodeText | None = None


def made_tokenizer(folder: Path) -> MadeTokenizer:
    """Return the tokenizer of a folder without tokenizer.json, with what its configuration adds. Raises
    ModelFolderError."""
    source = tokenizer_source(folder)
    if source == SENTENCE_PIECE:
        return _of_sentence_piece(folder)
    if source == TIKTOKEN:
        return _of_tiktoken(folder)
    return _of_tekken(folder / TEKKEN) if source == TEKKEN else _of_merges(folder)


def made_tokenizer_problem(folder: Path) -> str | None:
    """Return what is wrong with the files that a folder has instead of tokenizer.json, None if they can be used, or are
    not needed."""
    try:
        if tokenizer_source(folder) != TOKENIZER:
            made_tokenizer(folder)
    except ModelFolderError as problem:
        return str(problem)
    return None


def _of_sentence_piece(folder: Path) -> MadeTokenizer:
    path = folder / SENTENCE_PIECE
    found = read_sentence_piece(read_bounded(path, MAX_MODEL_BYTES), str(path))
    has_encoder = needs_encoder(found)
    encoder = SentencePieceEncoder(found, str(path)) if has_encoder else None
    num_stated = len(found.tokens)
    _add(folder, found, SENTENCE_PIECE)
    metadata = {"general.architecture": SENTENCE_PIECE, **found.metadata()}
    stated = read_if_present(folder / TOKENIZER_CONFIG).get("tokenizer_class")
    metadata["tokenizer.ggml.add_bos_token"] = stated is None or str(stated).startswith(_STARTING_CLASSES)
    files = tokenizer_files(Parameters(metadata, str(path)), has_model=not has_encoder, is_gguf=False)
    if encoder is None:
        return MadeTokenizer(files)
    literals = {
        text: token
        for token, (text, kind) in enumerate(zip(found.tokens, found.kinds, strict=True))
        if text and (kind == CONTROL or token >= num_stated)
    }
    return MadeTokenizer(files, around(literals, encoder.encode))


def _of_tekken(path: Path) -> MadeTokenizer:
    return MadeTokenizer(tokenizer_files(Parameters(tekken_metadata(path), str(path)), is_gguf=False))


def _of_tiktoken(folder: Path) -> MadeTokenizer:
    metadata = tiktoken_metadata(folder / TIKTOKEN, _added(folder))
    files = tokenizer_files(Parameters(metadata, str(folder / TIKTOKEN)), is_gguf=False)
    whole = msgspec.json.decode(files.tokenizer, type=dict[str, Any])
    stated = {key: value for key, value in files.configuration.items() if value is not None}
    whole["model"]["ignore_merges"] = True
    return MadeTokenizer(replace(files, tokenizer=msgspec.json.encode(whole), configuration=stated))


def _of_merges(folder: Path) -> MadeTokenizer:
    config = of_texts(read_if_present(folder / CONFIG))
    kind = config.get("model_type")
    own = MODEL_TYPES.get(kind) if isinstance(kind, str) else None
    if own is None or not own.cuts_by:
        raise CheckpointError(
            f"{folder} has {VOCABULARY} and {MERGES}, but no {TOKENIZER}: how a model of the type {str(kind)[:40]!r} "
            f"cuts text is not in them. {ADVICE}"
        )
    stated = read_if_present(folder / TOKENIZER_CONFIG)
    if stated.get("add_prefix_space"):
        raise CheckpointError(
            f"{folder} puts a space before texts ('add_prefix_space'), which Onward does not do. {ADVICE}"
        )
    found = _Tokens(*_read_vocabulary(folder / VOCABULARY))
    _add(folder, found, VOCABULARY)
    metadata: dict[str, MetadataValue] = {
        "general.architecture": VOCABULARY,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": own.cuts_by,
        "tokenizer.ggml.tokens": found.tokens,
        "tokenizer.ggml.token_type": found.kinds,
        "tokenizer.ggml.merges": _read_merges(folder / MERGES),
    }
    if stated.get("add_bos_token") is True and _is_gpt2(stated, config):
        metadata |= _start(folder, stated, found)
    files = tokenizer_files(Parameters(metadata, str(folder)), is_gguf=False)
    if own.is_composed:
        whole = msgspec.json.decode(files.tokenizer, type=dict[str, Any])
        files = replace(files, tokenizer=msgspec.json.encode(whole | {"normalizer": {"type": "NFC"}}))
    return MadeTokenizer(replace(files, configuration={}))  # names and ids come from the folder's own files


def _is_gpt2(stated: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether a folder's class is GPT-2's, which puts the start token before texts where it is asked to; all
    classes for such files do so only since transformers 5. `config`: config.json, whose model type has a class where
    none is stated."""
    name = stated.get("tokenizer_class") or config.get("tokenizer_class")
    return config.get("model_type") in _OF_GPT2 if name is None else str(name).startswith("GPT2")


def _start(folder: Path, stated: Mapping[str, Any], found: _Tokens) -> dict[str, MetadataValue]:
    """Return the start token that GPT-2's class puts before texts. Raises CheckpointError for one that there is not."""
    # as in transformers: the older file counts more, and is not read beside a list of the added tokens
    named = stated if "added_tokens_decoder" in stated else {**stated, **read_if_present(folder / SPECIAL_TOKENS)}
    start = _literal(named.get("bos_token", _START_OF_GPT2))
    if start not in found.tokens:
        raise CheckpointError(
            f"{folder} puts a token before texts ('add_bos_token') that {VOCABULARY} does not have: "
            f"{str(start)[:40]!r}. {ADVICE}"
        )
    return {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": found.tokens.index(start)}


@dataclass(slots=True)
class _Tokens:
    """A vocabulary by id."""

    tokens: list[str]
    kinds: list[int]

    def add(self, text: str, kind: int) -> None:
        self.tokens.append(text)
        self.kinds.append(kind)


def _read_vocabulary(path: Path) -> tuple[list[str], list[int]]:
    content = read_bounded(path, MAX_TOKENIZER_BYTES)
    if content.count(b":") > MAX_ENTRIES:
        raise CheckpointError(f"{path} has more entries than any vocabulary: download it again.")
    try:
        ids = msgspec.json.decode(content, type=dict[str, int])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise CheckpointError(f"{path} is not a JSON object of tokens and their ids: download it again.") from None
    tokens = sorted(ids, key=lambda text: ids[text])
    if [ids[text] for text in tokens] != list(range(len(tokens))):
        raise CheckpointError(f"{path} is broken (its ids have gaps, or are there twice): download it again.")
    return tokens, [NORMAL] * len(tokens)


def _read_merges(path: Path) -> list[str]:
    """Return one merge per line; the first line may be a comment."""
    content = read_bounded(path, MAX_TOKENIZER_BYTES)
    if content.count(b"\n") > MAX_ENTRIES:
        raise CheckpointError(f"{path} has more lines than any list of merges: download it again.")
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not text: download it again.") from None
    if lines[0].startswith("#version"):
        lines = lines[1:]
    return [line.rstrip("\r") for line in lines if line.strip()]


def _add(folder: Path, found: SentencePieces | _Tokens, name: str) -> None:
    """Add the tokens that a folder's configuration adds, and mark those that it names as special. `name` is the file of
    the others. Raises ModelFolderError."""
    for token, (text, kind) in sorted(_added(folder).items()):
        if token == len(found.tokens):
            found.add(text, kind)
        elif token > len(found.tokens) or found.tokens[token] != text:
            raise CheckpointError(
                f"{folder} adds the token {text[:40]!r} as {token}, where {name} has another one, or none "
                f"before it (it has {len(found.tokens)}): copy or download the folder again."
            )
        elif kind == CONTROL:
            found.kinds[token] = CONTROL
    special = _named(folder)
    stated_names = read_if_present(folder / SPECIAL_TOKENS) | read_if_present(folder / TOKENIZER_CONFIG)
    if "tokenizer_class" in stated_names and "unk_token" not in stated_names:  # transformers' classes name one then
        special |= {text for text, kind in zip(found.tokens, found.kinds, strict=True) if kind == UNKNOWN}
    for config in (read_if_present(folder / GENERATION_CONFIG), read_if_present(folder / CONFIG)):
        for key in ("bos_token_id", "eos_token_id"):
            stated = config.get(key)
            ids = [each for each in (stated if isinstance(stated, list) else [stated]) if type(each) is int]
            special |= {found.tokens[token] for token in ids if 0 <= token < len(found.tokens)}
    for token, text in enumerate(found.tokens):
        if text in special:
            found.kinds[token] = CONTROL


def _added(folder: Path) -> dict[int, tuple[str, int]]:
    """Return text and kind of the tokens that the folder's configuration adds or names, by id."""
    found: dict[int, tuple[str, int]] = {}
    for text, token in read_if_present(folder / ADDED_TOKENS).items():
        if type(token) is int and token >= 0:
            found[token] = text, USER_DEFINED
    named = read_if_present(folder / TOKENIZER_CONFIG).get("added_tokens_decoder")
    for number, entry in (named if isinstance(named, dict) else {}).items():
        content = entry.get("content") if isinstance(entry, dict) else None
        if isinstance(content, str) and number.isdecimal() and len(number) < _MAX_DIGITS:
            found[int(number)] = content, CONTROL if entry.get("special") else USER_DEFINED
    return found


def _named(folder: Path) -> set[str]:
    """Return the tokens that the folder names for a use, which makes them special."""
    found: set[str] = set()
    for name in (SPECIAL_TOKENS, TOKENIZER_CONFIG):
        for key, value in read_if_present(folder / name).items():
            if not key.endswith(("_token", "_special_tokens")):
                continue
            for each in value if isinstance(value, list) else [value]:
                literal = _literal(each)
                found |= {literal} if isinstance(literal, str) else set()
    return found


def _literal(stated: Any) -> Any:
    """Return the text of a token that is stated as it is, or as an object."""
    return stated.get("content") if isinstance(stated, dict) else stated
