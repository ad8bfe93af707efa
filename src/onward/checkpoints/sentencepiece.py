"""SentencePiece's `tokenizer.model` (sentencepiece_model.proto), by the names that a GGUF file has for the same.

Only what is needed of the format: fields with a number and a kind, in any order, the unknown ones skipped. Nothing in a
file is trusted: every length is checked against the file before it is used.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.normalization import SPACE, CharacterMap, Rules
from onward.checkpoints.types import BYTE, NORMAL, USER_DEFINED
from onward.errors import CheckpointError

MAX_MODEL_BYTES = 64_000_000
"""Of a file: ten times the largest known one, with 262,000 tokens."""
ADVICE = (
    "Save tokenizer.json next to it: `AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)`, transformers."
)
MAX_TOKENS = 1 << 19
"""Of a file: twice the largest known vocabulary."""
MAX_FIELDS = 5 * MAX_TOKENS // 2
"""Of a file, nested ones included."""
_MAX_DIGITS = 10
"""Bytes of a variable-length number."""
_NUMBER, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
"""Kinds of fields on the wire."""
_PIECE, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5
"""Fields of ModelProto."""
UNIGRAM, BPE = 1, 2
_MODEL_TYPES = {3: "words", 4: "characters"}
"""Of TrainerSpec.model_type, UNIGRAM by default."""
_MODEL_TYPE, _SPACE_AFTER, _BYTES_OF_UNKNOWN, _UNKNOWN, _START, _END = 3, 24, 35, 40, 41, 42
"""Fields of TrainerSpec."""
_CHARACTER_MAP, _SPACE_BEFORE, _DROPS_SPACES, _ESCAPES = 2, 3, 4, 5
"""Fields of NormalizerSpec."""

Field = int | bytes


@dataclass(slots=True)
class SentencePieces:
    """The tokens of a model, a list entry each, and what it states about training and normalisation, by field."""

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    trainer: dict[int, Field] = field(default_factory=dict)
    normalizer: dict[int, Field] = field(default_factory=dict)
    denormalizer: dict[int, Field] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    """How a text is rewritten before it is cut."""

    @property
    def is_unigram(self) -> bool:
        """Whether the most probable tokens are chosen, instead of merging pairs."""
        return self.trainer.get(_MODEL_TYPE, UNIGRAM) == UNIGRAM

    @property
    def has_byte_tokens(self) -> bool:
        """Whether what has no token becomes a token per byte."""
        return bool(self.trainer.get(_BYTES_OF_UNKNOWN))

    def texts(self, kind: int) -> dict[str, int]:
        """Return the tokens of a kind by their text."""
        each = enumerate(zip(self.tokens, self.kinds, strict=True))
        return {text: token for token, (text, found) in each if found == kind}

    def add(self, text: str, kind: int, score: float = 0.0) -> None:
        """Append a token."""
        self.tokens.append(text)
        self.scores.append(score)
        self.kinds.append(kind)

    def metadata(self) -> dict[str, MetadataValue]:
        """Return this by GGUF's names. Tokens that the makers chose have spaces, because they are looked for in the
        text before it is rewritten."""
        each = zip(self.tokens, self.kinds, strict=True)
        found: dict[str, MetadataValue] = {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [
                text.replace(SPACE, " ") if kind == USER_DEFINED else text for text, kind in each
            ],
            "tokenizer.ggml.scores": self.scores,
            "tokenizer.ggml.token_type": self.kinds,
            "tokenizer.ggml.add_space_prefix": self.rules.has_space_before,
        }
        for name, number, default in (("unknown", _UNKNOWN, 0), ("bos", _START, 1), ("eos", _END, 2)):
            token = self.trainer.get(number, default)
            if isinstance(token, int) and 0 <= token < len(self.tokens):  # a negative number: there is none
                found[f"tokenizer.ggml.{name}_token_id"] = token
        return found


def read_sentence_piece(content: bytes, where: str) -> SentencePieces:
    """Return what a `tokenizer.model` contains. `where` names the file in messages.

    Raises CheckpointError for a file that is broken, or whose rules Onward does not follow.
    """
    model = _read(content, where)
    _require_known_rules(model, where)
    model.rules = _rules(model, where)
    return model


def _read(content: bytes, where: str) -> SentencePieces:
    model = SentencePieces()
    fields = partial(_fields, budget=iter(range(MAX_FIELDS)))
    try:
        for number, value in fields(content):
            if not isinstance(value, bytes):
                continue
            if number == _PIECE:
                _add_piece(model, dict(fields(value)))
            elif number == _TRAINER:
                model.trainer |= dict(fields(value))
            elif number == _NORMALIZER:
                model.normalizer |= dict(fields(value))
            elif number == _DENORMALIZER:
                model.denormalizer |= dict(fields(value))
    except (ValueError, struct.error) as error:
        raise CheckpointError(f"{where} is not a SentencePiece model ({error}): download it again.") from None
    if not model.tokens:
        raise CheckpointError(f"{where} is not a SentencePiece model (it has no tokens): download it again.")
    return model


def _add_piece(model: SentencePieces, piece: dict[int, Field]) -> None:
    """Add a token: 1 is its text, 2 its score, 3 its kind. Raises ValueError, struct.error."""
    text, score, kind = piece.get(1, b""), piece.get(2, bytes(4)), piece.get(3, NORMAL)
    if not (isinstance(text, bytes) and isinstance(score, bytes) and isinstance(kind, int)):
        raise ValueError("a token has fields of other kinds")
    if not NORMAL <= kind <= BYTE or len(model.tokens) >= MAX_TOKENS:
        raise ValueError(f"a token of the kind {kind}, or too many of them")
    [number] = struct.unpack("<f", score)
    if not math.isfinite(number):
        raise ValueError("a token's score is not a number")
    model.add(text.decode(), kind, number)


def _rules(model: SentencePieces, where: str) -> Rules:
    stated = model.normalizer
    content = stated.get(_CHARACTER_MAP)
    try:
        replaced = CharacterMap(content) if isinstance(content, bytes) and content else None
    except ValueError as error:
        raise CheckpointError(f"{where} is broken (it has {error}): download it again.") from None
    return Rules(
        replaced,
        bool(stated.get(_DROPS_SPACES, 1)),
        bool(stated.get(_SPACE_BEFORE, 1)),
        tuple(model.texts(USER_DEFINED)),
    )


def _require_known_rules(model: SentencePieces, where: str) -> None:
    """Raise CheckpointError for rules that would make other tokens of a text."""
    kind = model.trainer.get(_MODEL_TYPE, UNIGRAM)
    if kind not in (UNIGRAM, BPE):
        rule = _MODEL_TYPES.get(kind if isinstance(kind, int) else 0, str(kind))
        raise CheckpointError(
            f"{where} cuts text by {rule}, which Onward does not do: it does by BPE or unigram. {ADVICE}"
        )
    normalizer, trainer = model.normalizer, model.trainer
    others = {
        "leaves spaces as they are ('escape_whitespaces')": not normalizer.get(_ESCAPES, 1),
        "puts spaces after words ('treat_whitespace_as_suffix')": trainer.get(_SPACE_AFTER),
        "rewrites the text of tokens ('denormalizer_spec')": model.denormalizer.get(_CHARACTER_MAP),
    }
    for rule, applies in others.items():
        if applies:
            raise CheckpointError(f"{where} {rule}, which Onward does not do. {ADVICE}")


def _fields(content: bytes, budget: Iterator[int]) -> Iterator[tuple[int, Field]]:
    """Yield number and value of each field: a number, or the bytes of anything else. `budget` ends with the last field
    that may be read. Raises ValueError."""
    position = 0
    while position < len(content):
        if next(budget, None) is None:
            raise ValueError("it has more fields than any model")
        key, position = _number(content, position)
        kind = key & 7
        if kind == _NUMBER:
            value, position = _number(content, position)
            yield key >> 3, value - (1 << 64) if value >> 63 else value
            continue
        if kind == _BYTES:
            length, position = _number(content, position)
        elif kind in (_EIGHT, _FOUR):
            length = 8 if kind == _EIGHT else 4
        else:
            raise ValueError(f"a field of the unknown kind {kind}")
        if length > len(content) - position:
            raise ValueError("it is cut off")
        yield key >> 3, content[position : position + length]
        position += length


def _number(content: bytes, position: int) -> tuple[int, int]:
    """Return the variable-length number at a position, and the position after it. Raises ValueError."""
    value = 0
    for index, byte in enumerate(content[position : position + _MAX_DIGITS]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value & ((1 << 64) - 1), position + index + 1
    raise ValueError("a number does not end")
