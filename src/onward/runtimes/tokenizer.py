"""A model folder's tokenizer.json as the engine's Tokenizer: text to ids, ids to the exact bytes they spell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Library

from onward.errors import ModelFolderError
from onward.runtimes.files import TOKENIZER, missing_tokenizer
from onward.runtimes.spelling import Pipeline, UnknownSpelling, spelling_of

LONG_TEXT = 4096
"""Texts of more characters are encoded by the library's call for many, the only one that lets other threads run: a
megabyte takes a second. Shorter ones are not, as that call starts threads of its own."""

# transformers rebuilds these classes' post-processor from add_bos_token; the saved one may be older.
_CLASSES_WITH_ADD_BOS = ("Llama", "CodeLlama", "Gemma")


class HuggingFaceTokenizer:
    """Implements engine.model.Tokenizer over the `tokenizers` library. Immutable after the start.

    For a byte-level vocabulary, the bytes of `encode(text)` joined are the bytes of `text`. A SentencePiece
    vocabulary with a dummy prefix spells the text's first word with a space before it: the
    joined bytes are then a space and the text, unless the text begins with a space or a special token.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ModelFolderError: tokenizer.json is missing, broken, or of a kind whose bytes are unknown."""
        self._library, spell = _read_tokenizer(folder / TOKENIZER)
        self._ids: dict[str, int] = self._library.get_vocab(with_added_tokens=True)
        self.size = max(self._ids.values(), default=-1) + 1
        added = self._library.get_added_tokens_decoder()
        own = self._library.get_vocab(with_added_tokens=False)
        self._bytes = [b""] * self.size
        for text, token in own.items():
            self._bytes[token] = spell(text)
        for token, entry in added.items():
            if entry.special or entry.content not in own:
                self._bytes[token] = entry.content.encode()
        self._added = {entry.content: token for token, entry in added.items()}
        self._special = frozenset(token for token, entry in added.items() if entry.special)
        self.special_literals = tuple(added[token].content for token in sorted(self._special))
        self._read_names(folder)

    def _read_names(self, folder: Path) -> None:
        names = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
        configs = [_read_json(folder / name) for name in ("generation_config.json", "config.json")]
        self.bos_token = self._named("bos_token", names, configs)
        self.eos_token = self._named("eos_token", names, configs)
        bos = None if self.bos_token is None else self._ids[self.bos_token]
        eos = None if self.eos_token is None else self._ids[self.eos_token]
        self.start_token = eos if bos is None else bos
        ends = {token for config in configs for token in _listed(config.get("eos_token_id"))}
        self.end_tokens = frozenset(ends if eos is None else {*ends, eos})
        self._prefix = self._implicit_tokens(names, bos)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Lone surrogates, which are no text, are read as question marks."""
        try:
            ids = self._encode(text)
        except TypeError:
            ids = self._encode(text.encode("utf-8", "replace").decode())
        return [*self._prefix, *ids] if add_special_tokens else ids

    def _encode(self, text: str) -> list[int]:
        if len(text) > LONG_TEXT:
            [encoded] = self._library.encode_batch_fast([text], add_special_tokens=False)
        else:
            encoded = self._library.encode(text, add_special_tokens=False)
        ids: list[int] = encoded.ids
        return ids

    def implicit_prefix(self, *, add_special_tokens: bool) -> int:
        return len(self._prefix) if add_special_tokens else 0

    def token_bytes(self, token: int) -> bytes:
        """Ids that the vocabulary lacks (padding of the logits' width) spell nothing."""
        return self._bytes[token] if 0 <= token < self.size else b""

    def is_special(self, token: int) -> bool:
        return token in self._special

    def token_id(self, literal: str) -> int | None:
        return self._added.get(literal)

    def _named(self, key: str, names: dict[str, Any], configs: list[dict[str, Any]]) -> str | None:
        """The literal of `bos_token` or `eos_token`: as the tokenizer's files name it, else by the model's id."""
        if key in names:
            literal = names[key]
            if isinstance(literal, dict):
                literal = literal.get("content")
            return literal if literal in self._ids else None
        for config in configs:
            for token in _listed(config.get(f"{key}_id")):
                return self._library.id_to_token(token)
        return None

    def _implicit_tokens(self, names: dict[str, Any], bos: int | None) -> list[int]:
        """What the post-processor puts before every text. What it would put after one is left out."""
        choice = names.get("add_bos_token")
        rebuilt = str(names.get("tokenizer_class", "")).startswith(_CLASSES_WITH_ADD_BOS)
        if rebuilt and isinstance(choice, bool):
            return [bos] if choice and bos is not None else []
        plain = self._library.encode("a", add_special_tokens=False).ids
        whole = self._library.encode("a", add_special_tokens=True).ids
        for begin in range(len(whole) - len(plain) + 1):
            if whole[begin : begin + len(plain)] == plain:
                return list(whole[:begin])
        return []


def _read_tokenizer(path: Path) -> tuple[Library, Any]:
    """The library's tokenizer, and the function that spells its vocabulary's entries."""
    if not path.is_file():
        raise ModelFolderError(missing_tokenizer(path.parent))
    content = path.read_bytes()
    try:
        library = Library.from_buffer(content)
        spell = spelling_of(msgspec.json.decode(content, type=Pipeline))
    except UnknownSpelling as error:
        raise ModelFolderError(f"{path} cannot be used: {error}.") from error
    except Exception as error:  # the library raises plain Exception
        raise ModelFolderError(f"{path} is no tokenizer that can be read ({error}).") from error
    library.no_truncation()
    library.no_padding()
    return library, spell


def _read_json(path: Path) -> dict[str, Any]:
    """The file's object; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ModelFolderError(f"{path} is not valid JSON ({error}).") from error


def _listed(value: object) -> list[int]:
    """Token ids that a config gives as a number, a list, or not at all; some write -1 for none."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if type(item) is int and 0 <= item < 1 << 32]
