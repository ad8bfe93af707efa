"""tokenizer.json as the engine's Tokenizer: text to token ids, and token ids to their exact bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from onward.checkpoints.json_files import read_bounded
from onward.checkpoints.sentencepiece_encoder import EncodeText
from onward.checkpoints.tokenizer import INFILL_TOKENS, SPECIAL_IDS, TOKENS
from onward.errors import ModelFolderError, OnwardError, TextNotEncodable
from onward.model_files.files import (
    CHAT_TEMPLATE,
    CONFIG,
    GENERATION_CONFIG,
    MAX_TEMPLATE_BYTES,
    SPECIAL_TOKENS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    read_if_present,
    read_tokenizer,
    tokenizer_source,
)
from onward.model_files.known_rules import are_known
from onward.model_files.token_bytes import BytesOf, Pipeline, UnknownDecoder, bytes_function
from onward.model_files.tokenizer_folder import made_tokenizer
from onward.model_files.tokenizer_process import TokenizerProcess
from onward.model_files.vocabulary import PackedVocabulary
from onward.residency import trim_heap

MIN_LONG_TEXT_CHARACTERS = 4096
"""Longer texts are encoded by the library's batch call, the only one that releases the interpreter lock: a megabyte
takes a second. Shorter ones are not, because that call starts threads of its own."""

MIN_TRIMMED_CHARACTERS = 1_000_000
"""After a longer text, freed memory is returned to the system: the library needs a hundred bytes per character, of
which the allocator would keep a third."""
MAX_REASON_CHARACTERS = 200
"""Of the library's reason why it cannot encode a text or read a file."""

MAX_VOCABULARY_TOKENS = 1 << 22
"""Sixteen times the largest known vocabulary. Ids index lists: an id of four billion would take 17 GB."""

# For these classes, transformers rebuilds the post-processor from add_bos_token; the saved one may be older.
_CLASSES_WITH_ADD_BOS = ("Llama", "CodeLlama", "Gemma")
_RULES = ("normalizer", "pre_tokenizer")
"""The parts of tokenizer.json that rewrite and cut a text."""


@dataclass(frozen=True, slots=True)
class TokenizerContent:
    """What a tokenizer is built from. `path` is for messages."""

    path: Path
    tokenizer: bytes
    """tokenizer.json."""
    names: dict[str, Any]
    """tokenizer_config.json over special_tokens_map.json."""
    configs: list[dict[str, Any]]
    """generation_config.json and config.json."""
    encode: EncodeText | None = None
    """What turns texts into tokens where the library only knows the vocabulary."""
    packed: PackedVocabulary | None = None
    """What `HuggingFaceTokenizer.packed` was when it was built from all of this before."""
    is_strange: bool = False
    """Whether strangers have written tokenizer.json, and not Onward."""


class HuggingFaceTokenizer:
    """Implements engine.model.Tokenizer over the `tokenizers` library. Immutable, safe from every thread.

    A tokenizer.json whose rules are not known, or whose model is not BPE, encodes texts in a process of its own.

    For a byte-level vocabulary, the joined bytes of `encode(text)` are the bytes of `text`. A SentencePiece vocabulary
    with a dummy prefix puts a space before the first word: the joined bytes are then a space and the text, unless the
    text begins with a space or a special token.
    """

    def __init__(self, source: Path | TokenizerContent) -> None:
        """`source`: a folder with tokenizer.json, or what such files would contain.

        Raises ModelFolderError if tokenizer.json is missing, broken, or does not define the bytes of tokens.
        """
        content = _read_folder(source) if isinstance(source, Path) else source
        path = content.path
        self._own_encode = content.encode
        self._process: TokenizerProcess | None = None
        with _reported(path):
            bytes_of = None if content.packed else bytes_function(msgspec.json.decode(content.tokenizer, type=Pipeline))
            self._library = self._strange(content.tokenizer) if content.is_strange else _library(content.tokenizer)
            self.has_process = self._process is not None
            added = self._library.get_added_tokens_decoder()
            self._added = {entry.content: token for token, entry in added.items()}
            self.special_literals = tuple(added[token].content for token in sorted(added) if added[token].special)
            self._read_names(content.names, content.configs)
            self.packed = content.packed or self._read_vocabulary(content, added, bytes_of)
            self.size = self.packed.size
            self.max_token_bytes = int(np.diff(self.packed.offsets).max(initial=0))
            self.infill_tokens: Mapping[str, int] = _infill_tokens(content.names.get(INFILL_TOKENS), self.size)
            self.suppressed_tokens = _suppressed_tokens(path.parent, content.configs, self.size)

    def _strange(self, tokenizer: bytes) -> Library:
        """Return the library with a stranger's tokenizer. One that may take any time only has the vocabulary, and a
        process encodes texts."""
        whole = msgspec.json.decode(tokenizer, type=dict[str, msgspec.Raw])
        parts = {part: msgspec.json.decode(whole.get(part, b"null")) for part in _RULES}
        if are_known(*(parts[part] for part in _RULES)):
            # as they were looked at: the library may take another one of two with the same name
            library = _library(msgspec.json.encode({**whole, **parts}))
            if isinstance(library.model, BPE):
                return library
        self._process = TokenizerProcess(tokenizer)
        return _library(msgspec.json.encode({**whole, **dict.fromkeys(_RULES)}))

    def _read_vocabulary(
        self, content: TokenizerContent, added: Mapping[int, AddedToken], bytes_of: BytesOf | None
    ) -> PackedVocabulary:
        assert bytes_of is not None
        own = self._library.get_vocab(with_added_tokens=False)
        size = max([*own.values(), *added], default=-1) + 1
        if size > MAX_VOCABULARY_TOKENS:
            raise ModelFolderError(
                f"{content.path} is not a valid tokenizer (it has the token id {size - 1}, beyond any vocabulary): "
                "copy or download it again."
            )
        texts = [b""] * size
        for token, found in zip(own.values(), bytes_of(list(own)), strict=True):
            texts[token] = found
        for token, entry in added.items():
            if entry.special or entry.content not in own:
                texts[token] = entry.content.encode()
        others, special = _others(content.names)
        texts += [b""] * (max(others, default=-1) + 1 - size)
        for token, of in others.items():
            if isinstance(of, str):
                texts[token] = of.encode()
            else:
                texts[token] = texts[of] if 0 <= of < len(texts) else b""
        special |= {token for token, entry in added.items() if entry.special}
        return PackedVocabulary.of_texts(texts, special, self.end_tokens)

    def _read_names(self, names: dict[str, Any], configs: list[dict[str, Any]]) -> None:
        self.bos_token = self._named("bos_token", names, configs)
        self.eos_token = self._named("eos_token", names, configs)
        bos = None if self.bos_token is None else self._library.token_to_id(self.bos_token)
        eos = None if self.eos_token is None else self._library.token_to_id(self.eos_token)
        self.start_token = eos if bos is None else bos
        ends = {token for config in configs for token in _listed(config.get("eos_token_id"))}
        self.end_tokens = frozenset(ends if eos is None else {*ends, eos})
        self.chat_template = _chat_template(names.get("chat_template"))
        self._prefix = self._implicit_tokens(names, bos)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """See engine.model.Tokenizer. Lone surrogates, which are not text, are encoded as question marks."""
        try:
            ids = self._encode(text)
        except TypeError:
            ids = self._encode(text.encode("utf-8", "replace").decode())
        except BaseException as error:
            raise _cannot_encode(error) from None
        return [*self._prefix, *ids] if add_special_tokens else ids

    def _encode(self, text: str) -> list[int]:
        if self._process is not None:
            return self._process.encode(text.encode("utf-8", "replace").decode())
        if self._own_encode is not None:
            return self._own_encode(text.encode("utf-8", "replace").decode())
        if len(text) > MIN_LONG_TEXT_CHARACTERS:
            [encoded] = self._library.encode_batch_fast([text], add_special_tokens=False)
        else:
            encoded = self._library.encode(text, add_special_tokens=False)
        ids: list[int] = encoded.ids
        if len(text) > MIN_TRIMMED_CHARACTERS:
            del encoded
            trim_heap()
        return ids

    def implicit_prefix(self, *, add_special_tokens: bool) -> int:
        return len(self._prefix) if add_special_tokens else 0

    def token_bytes(self, token: int) -> bytes:
        """Return the exact bytes of a token; b"" for an id beyond the vocabulary (padding of the logits' width)."""
        return self.packed.token_bytes(token)

    def is_special(self, token: int) -> bool:
        return self.packed.is_special(token)

    def token_id(self, literal: str) -> int | None:
        return self._added.get(literal)

    def _named(self, key: str, names: dict[str, Any], configs: list[dict[str, Any]]) -> str | None:
        """Return the literal of `bos_token` or `eos_token`: from the tokenizer's files, else by the model's id."""
        if key in names:
            literal = names[key]
            if isinstance(literal, dict):
                literal = literal.get("content")
            is_token = isinstance(literal, str) and self._library.token_to_id(literal) is not None
            return literal if is_token else None
        for config in configs:
            for token in _listed(config.get(f"{key}_id")):
                return self._library.id_to_token(token)
        return None

    def _implicit_tokens(self, names: dict[str, Any], bos: int | None) -> list[int]:
        """Return the tokens that the post-processor puts before every text. Any that it puts after one are left out."""
        choice = names.get("add_bos_token")
        rebuilt = str(names.get("tokenizer_class", "")).startswith(_CLASSES_WITH_ADD_BOS)
        if rebuilt and isinstance(choice, bool):
            return [bos] if choice and bos is not None else []
        plain, whole = (self._one_letter(add_special_tokens=choice) for choice in (False, True))
        for begin in range(len(whole) - len(plain) + 1):
            if whole[begin : begin + len(plain)] == plain:
                return list(whole[:begin])
        return []

    def _one_letter(self, *, add_special_tokens: bool) -> list[int]:
        if self._process is None:
            return list(self._library.encode("a", add_special_tokens=add_special_tokens).ids)
        try:
            return self._process.encode("a", add_special_tokens=add_special_tokens)
        except TextNotEncodable as error:
            raise UnknownDecoder(str(error)) from None


def _library(tokenizer: bytes) -> Library:
    library = Library.from_buffer(tokenizer)
    library.no_truncation()
    library.no_padding()
    return library


def _cannot_encode(error: BaseException) -> BaseException:
    """Return what to raise for an exception of the library: TextNotEncodable, or the exception itself if it is not the
    text's fault.

    The library raises plain Exception, and PanicException, a BaseException that it does not export: its regular
    expressions have a limit that ten million spaces exceed.
    """
    if not _is_of_library(error):
        return error
    return TextNotEncodable(str(error)[:MAX_REASON_CHARACTERS])


def _is_of_library(error: BaseException) -> bool:
    """Return whether an error is one that the library raises for what it cannot handle."""
    return type(error) is Exception or type(error).__name__ == "PanicException"


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Convert what a broken tokenizer raises, a panic of the library too, to ModelFolderError."""
    try:
        yield
    except OnwardError:
        raise
    except UnknownDecoder as error:
        raise ModelFolderError(f"{path} cannot be used: {error}.") from error
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_of_library(error):
            raise
        reason = str(error)[:MAX_REASON_CHARACTERS] or type(error).__name__
        raise ModelFolderError(f"{path} is not a valid tokenizer ({reason}): copy or download it again.") from error


def _read_folder(folder: Path) -> TokenizerContent:
    names = read_if_present(folder / SPECIAL_TOKENS) | read_if_present(folder / TOKENIZER_CONFIG)
    if (template := folder / CHAT_TEMPLATE).is_file():  # transformers prefers it, too
        names["chat_template"] = read_bounded(template, MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
    configs = [read_if_present(folder / name) for name in (GENERATION_CONFIG, CONFIG)]
    if (source := tokenizer_source(folder)) != TOKENIZER:
        made = made_tokenizer(folder)
        files = made.files
        return TokenizerContent(
            folder / source, files.tokenizer, files.configuration | names, [*configs, files.generation], made.encode
        )
    tokenizer = read_tokenizer(folder / TOKENIZER)
    return TokenizerContent(folder / TOKENIZER, tokenizer, names, configs, is_strange=True)


def _others(names: dict[str, Any]) -> tuple[dict[int, Any], set[int]]:
    """Return the tokens that the library does not know, or whose bytes are not those of their text, of files that are
    made here: what they stand for, and which of them are special."""
    others, special = names.get(TOKENS), names.get(SPECIAL_IDS)
    known = others if isinstance(others, dict) else {}
    numbers = [int(token) for token in known if token.isdecimal() and len(token) < 8]
    found = {token: known[str(token)] for token in numbers if token < MAX_VOCABULARY_TOKENS}
    listed = special if isinstance(special, list) else []
    return found, {token for token in listed if type(token) is int and token in found}


def _chat_template(stated: object) -> str:
    """Return a template, of several by names that called default; "" for what is none."""
    if isinstance(stated, list):
        named = (each for each in stated if isinstance(each, dict) and each.get("name") == "default")
        stated = next((each.get("template") for each in named), None)
    return stated if isinstance(stated, str) else ""


def _suppressed_tokens(folder: Path, configs: list[dict[str, Any]], size: int) -> frozenset[int]:
    """Return the ids of generation_config.json's `suppress_tokens`, or of config.json's in a folder without that file,
    as in transformers. Raises ModelFolderError for what is no list of ids, and where no other token is left."""
    stated = next((config for config in configs if config), {}).get("suppress_tokens")
    if stated is None:
        return frozenset()
    if not isinstance(stated, list) or not all(type(token) is int for token in stated):
        raise ModelFolderError(f"{folder} states {str(stated)[:40]!r} as 'suppress_tokens', which is no list of ids.")
    found = frozenset(stated)
    if all(token in found for token in range(size)):
        raise ModelFolderError(f"{folder} suppresses all of its tokens ('suppress_tokens').")
    return found


def _infill_tokens(stated: object, size: int) -> dict[str, int]:
    """Return the ids that tokenizer_config.json states for infill tokens, without values that are not ids."""
    found = stated if isinstance(stated, dict) else {}
    return {str(name): token for name, token in found.items() if type(token) is int and 0 <= token < size}


def _listed(value: object) -> list[int]:
    """Return the token ids in a value of a config: a number, a list, or nothing; -1 means none."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if type(item) is int and 0 <= item < 1 << 32]
