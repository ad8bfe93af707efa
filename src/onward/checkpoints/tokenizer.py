"""The tokenizer of a GGUF file as the files that Hugging Face's library reads: tokenizer.json and its configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from onward.checkpoints.merges import merges_of_scores
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.pretokenizers import PRE_TOKENIZERS
from onward.checkpoints.token_kinds import CONTROL, NORMAL, USER_DEFINED
from onward.errors import CheckpointError

_SPACE = "▁"
INFILL_TOKENS = "onward_infill_tokens"
"""In tokenizer_config.json, of files that are made here: see `engine.model.Tokenizer.infill_tokens`."""
_INFILL = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "padding": ("fim_pad_token_id",),
    "repository": ("fim_rep_token_id",),
    "file": ("fim_sep_token_id",),
}
"""Infill tokens by GGUF's names, the newer ones first."""
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The contents of tokenizer.json, tokenizer_config.json and generation_config.json."""

    tokenizer: bytes
    configuration: dict[str, Any]
    generation: dict[str, Any]


class _Vocabulary:
    """The lists that a file has one entry per token in, checked against each other."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.tokens: list[Any] = parameters.list_of(str, "tokenizer.ggml.tokens") or []
        if not self.tokens:
            raise CheckpointError(f"{parameters.where} has no tokens: it is not a language model.")
        self.kinds: list[Any] = self._per_token(int, "tokenizer.ggml.token_type") or [NORMAL] * len(self.tokens)
        self.ids: dict[str, int] = {}
        for token, text in enumerate(self.tokens):
            self.ids.setdefault(text, token)

    def _per_token(self, kind: type, name: str) -> list[Any] | None:
        found = self.parameters.list_of(kind, name)
        if found is not None and len(found) != len(self.tokens):
            raise CheckpointError(
                f"{self.parameters.where} has {len(self.tokens)} tokens and {len(found)} of {name!r}."
            )
        return found

    def scores(self) -> list[Any]:
        """Return one number per token. Raises CheckpointError."""
        found = self._per_token(float, "tokenizer.ggml.scores")
        if found is None:
            raise CheckpointError(
                f"{self.parameters.where} has no scores of its tokens: its tokenizer is not complete."
            )
        return found

    def special(self, name: str) -> int | None:
        """Return the id of a special token, None if there is none. Raises CheckpointError for what is not a token."""
        value = self.parameters.whole(f"tokenizer.ggml.{name}")
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            raise CheckpointError(f"{self.parameters.where} states {value!r} as {name!r}, which is not a token.")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a switch of the tokenizer."""
        value = self.parameters.whole(f"tokenizer.ggml.{name}")
        return value if isinstance(value, bool) else default


def tokenizer_files(parameters: Parameters, *, has_model: bool = True) -> TokenizerFiles:
    """Return the tokenizer that a file's metadata describe. `has_model`: whether it turns texts into tokens; else it
    has the vocabulary only. Raises CheckpointError for one that cannot be built.
    """
    kind = parameters.text("tokenizer.ggml.model", whole_name=True)
    vocabulary = _Vocabulary(parameters)
    if kind == "gpt2":
        pipeline = _byte_level(vocabulary)
    elif kind == "llama":
        pipeline = _sentence_piece(vocabulary) if has_model else _words(vocabulary)
    else:
        raise CheckpointError(
            f"{parameters.where} has a tokenizer of the kind {kind!r}, which Onward cannot build: it builds 'gpt2' "
            "(byte-level BPE) and 'llama' (SentencePiece BPE)."
        )
    bos = vocabulary.special("bos_token_id")
    adds_bos = bos is not None and vocabulary.flag("add_bos_token", kind == "llama")
    ends = [token for name in _ENDS if (token := vocabulary.special(name)) is not None]
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        **pipeline,
        "post_processor": _post_processor(vocabulary.tokens[bos], bos) if adds_bos and bos is not None else None,
    }
    configuration = {
        "bos_token": None if bos is None else vocabulary.tokens[bos],
        "eos_token": vocabulary.tokens[ends[0]] if ends else None,
        INFILL_TOKENS: _infill_tokens(vocabulary),
    }
    return TokenizerFiles(msgspec.json.encode(whole), configuration, {"eos_token_id": ends})


def _infill_tokens(vocabulary: _Vocabulary) -> dict[str, int]:
    found: dict[str, int] = {}
    for use, names in _INFILL.items():
        stated = [token for name in names if (token := vocabulary.special(name)) is not None]
        found |= {use: stated[0]} if stated else {}
    return found


def _byte_level(vocabulary: _Vocabulary) -> dict[str, Any]:
    name = vocabulary.parameters.whole("tokenizer.ggml.pre") or "gpt-2"
    rule = PRE_TOKENIZERS.get(str(name))
    if rule is None:
        raise CheckpointError(
            f"{vocabulary.parameters.where} cuts text by the rule {str(name)[:80]!r} ('tokenizer.ggml.pre'), which "
            f"Onward does not know. It knows {', '.join(sorted(PRE_TOKENIZERS))}."
        )
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in rule.patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, level]},
        "decoder": {**level, "use_regex": True},
        "model": _bpe(vocabulary, _stated_merges(vocabulary)) | {"ignore_merges": rule.ignore_merges},
    }


def _stated_merges(vocabulary: _Vocabulary) -> list[list[str]]:
    """Return the merges as pairs: a line has a space between two tokens, the first of which may begin with one."""
    lines: list[Any] = vocabulary.parameters.list_of(str, "tokenizer.ggml.merges") or []
    pairs = []
    for line in lines:
        left, _, right = line[1:].partition(" ")
        pairs.append([line[:1] + left, right])
    for left, right in pairs:
        if not (left in vocabulary.ids and right in vocabulary.ids and left + right in vocabulary.ids):
            raise CheckpointError(
                f"{vocabulary.parameters.where} merges {left[:40]!r} and {right[:40]!r}, which are not tokens: its "
                "tokenizer is broken."
            )
    return pairs


def _words(vocabulary: _Vocabulary) -> dict[str, Any]:
    """SentencePiece's tokens as a list of words."""
    unknown = vocabulary.special("unknown_token_id")
    model = {"type": "WordLevel", "vocab": vocabulary.ids, "unk_token": vocabulary.tokens[unknown or 0]}
    return {"normalizer": None, "pre_tokenizer": None, "decoder": _SENTENCE_PIECE_DECODER, "model": model}


_SENTENCE_PIECE_DECODER: dict[str, Any] = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}


def _sentence_piece(vocabulary: _Vocabulary) -> dict[str, Any]:
    """SentencePiece's BPE: what its scores prefer is merged first, and what has no token becomes bytes."""
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    if vocabulary.flag("add_space_prefix", True):
        steps.insert(0, {"type": "Prepend", "prepend": _SPACE})
    merges = merges_of_scores(vocabulary.tokens, vocabulary.kinds, vocabulary.scores())
    unknown = vocabulary.special("unknown_token_id")
    model = _bpe(vocabulary, merges)
    model |= {"unk_token": vocabulary.tokens[unknown or 0], "fuse_unk": True, "byte_fallback": True}
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": _SENTENCE_PIECE_DECODER,
        "model": model,
    }


def _bpe(vocabulary: _Vocabulary, merges: list[list[str]]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary.ids,
        "merges": merges,
    }


def _added_tokens(vocabulary: _Vocabulary) -> list[dict[str, Any]]:
    """Return the tokens that are recognised in a text as a whole: control tokens, and those that the makers added."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": token, "content": text, **flags, "special": kind == CONTROL}
        for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED) and text and vocabulary.ids[text] == token
    ]


def _post_processor(text: str, token: int) -> dict[str, Any]:
    """Return what puts the start token before every text."""
    start, first = {"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [start, first],
        "pair": [start, first, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]}},
    }
