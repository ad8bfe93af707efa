"""The tokens of a GGUF file: texts and kinds, and which of them have a use (llama.cpp's `llama_vocab::impl::load`).

A file may say little about its special tokens. llama.cpp then goes by their texts, and so does this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from onward.checkpoints.cursor import Strings
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.types import CONTROL, NORMAL, UNKNOWN, USER_DEFINED
from onward.errors import CheckpointError

BYTE_LEVEL, SENTENCE_PIECE, MERGED_LINES = "gpt2", "llama", "gemma4"
"""Kinds of tokenizers that can be built (`tokenizer.ggml.model`)."""
_TOKENS = "tokenizer.ggml.tokens"
MAX_CHARACTERS = 4_000_000
"""Of all tokens together: the largest known vocabulary has two million. What is built of them takes a hundred bytes for
each, and tokens of SentencePiece are split at every place."""
_DEFAULTS = {
    SENTENCE_PIECE: {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0},
    BYTE_LEVEL: {"bos_token_id": 11, "eos_token_id": 11},
    MERGED_LINES: {},
}
"""Ids of special tokens that a file does not state. Falcon's 11 counts where it is a control token."""
INFILL = {
    "prefix": ("fim_pre_token_id", "prefix_token_id"),
    "suffix": ("fim_suf_token_id", "suffix_token_id"),
    "middle": ("fim_mid_token_id", "middle_token_id"),
    "padding": ("fim_pad_token_id",),
    "repository": ("fim_rep_token_id",),
    "file": ("fim_sep_token_id",),
}
"""Infill tokens by GGUF's names, the newer ones first."""
INFILL_TEXTS = {
    "prefix": (
        "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>",
        "<|prefix|>",
    ),
    "suffix": (
        "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>",
        "<|suffix|>",
    ),
    "middle": (
        "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>",
        "<|middle|>",
    ),
    "padding": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "repository": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "file": ("<|file_sep|>",),
}  # fmt: skip
"""Texts of infill tokens whose ids a file does not state."""
_ENDING_USES = ("padding", "repository", "file")
"""Infill tokens that end a completion, too."""
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TEXTS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
})  # fmt: skip
"""Texts of tokens that end a completion, whatever else a file says about them."""
_HARMONY = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})
"""Texts of tokens that are text, whatever else a file says about them."""


def require_few_characters(tokens: Iterable[str], where: str) -> None:
    """Raise CheckpointError for longer tokens than any model's. `where` names the file."""
    if sum(map(len, tokens)) > MAX_CHARACTERS:
        raise CheckpointError(f"{where} has longer tokens than any model needs: download it again.")


class VocabularyLists:
    """The lists that a file has one entry per token in, checked against each other. `notes` are for the operator."""

    def __init__(self, parameters: Parameters, *, is_gguf: bool = True) -> None:
        """`is_gguf`: what is not stated is as in llama.cpp. Raises CheckpointError."""
        self.parameters = parameters
        self._is_gguf = is_gguf
        self.literal_kinds = frozenset({CONTROL, USER_DEFINED, *([UNKNOWN] if is_gguf else [])})
        """Of tokens that are recognised in a text as a whole, and stand for their text as it is."""
        self.notes: list[str] = []
        self.model = parameters.text("tokenizer.ggml.model", whole_name=True)
        if self.model not in _DEFAULTS:
            raise CheckpointError(
                f"{parameters.where} has a tokenizer of the kind {self.model[:40]!r}, which Onward cannot build: it "
                f"builds {BYTE_LEVEL!r} (byte-level BPE), {SENTENCE_PIECE!r} (SentencePiece BPE) and {MERGED_LINES!r}."
            )
        stated = parameters.whole(_TOKENS)
        self.size = len(stated) if isinstance(stated, Strings) else len(self.tokens)
        if not self.size:
            raise CheckpointError(f"{parameters.where} has no tokens: it is not a language model.")
        self._kinds: list[Any] = self._per_token(int, "tokenizer.ggml.token_type") or [NORMAL] * self.size

    @cached_property
    def tokens(self) -> list[Any]:
        """The text of each token, which a check does not need. Raises CheckpointError."""
        found = self.parameters.list_of(str, _TOKENS) or []
        require_few_characters(found, self.parameters.where)
        return found

    @cached_property
    def ids(self) -> dict[str, int]:
        """The first token of each text."""
        found: dict[str, int] = {}
        for token, text in enumerate(self.tokens):
            found.setdefault(text, token)
        return found

    @cached_property
    def kinds(self) -> list[Any]:
        """The kind of each token: what the file says, and what its text says."""
        self._infill, self._end_texts  # noqa: B018 - both change kinds
        return self._kinds

    def _per_token(self, kind: type, name: str) -> list[Any] | None:
        return self.parameters.list_of(kind, name, self.size)

    def scores(self) -> list[Any]:
        """Return one number per token. Raises CheckpointError."""
        found = self._per_token(float, "tokenizer.ggml.scores")
        if found is None:
            raise CheckpointError(
                f"{self.parameters.where} has no scores of its tokens: its tokenizer is not complete."
            )
        return found

    def special(self, name: str) -> int | None:
        """Return the id of a special token, None if there is none. An id that no token has is left out with a note."""
        value = self.parameters.whole(f"tokenizer.ggml.{name}")
        if value is None:
            return self._default(name)
        if type(value) is int and 0 <= value < self.size:
            return value
        if type(value) is not int:
            where = self.parameters.where
            raise CheckpointError(f"{where} states {str(value)[:40]!r} as {name!r}, which is not an id.")
        note = f"{self.parameters.where} states {str(value)[:40]} as {name!r}, which is not a token: it is not used."
        if note not in self.notes:
            self.notes.append(note)
        return self._default(name)

    def _default(self, name: str) -> int | None:
        found = _DEFAULTS[self.model].get(name)
        if not self._is_gguf or found is None or found >= self.size:
            return None
        return found if self.model == SENTENCE_PIECE or self.kinds[found] == CONTROL else None

    def flag(self, name: str, default: bool) -> bool:
        """Return a switch of the tokenizer. Raises CheckpointError."""
        value = self.parameters.whole(f"tokenizer.ggml.{name}")
        if value is None:
            return default
        if not isinstance(value, bool):
            raise CheckpointError(
                f"{self.parameters.where} states {str(value)[:40]!r} as {name!r}, where true or false is needed."
            )
        return value

    def infill_tokens(self) -> dict[str, int]:
        """Return the tokens for infilling by their use."""
        return dict(self._infill)

    def end_tokens(self) -> list[int]:
        """Return the tokens that end a completion, the one that the file names first."""
        named = [self.special(name) for name in _ENDS]
        used = [self._infill.get(use) for use in _ENDING_USES]
        by_text = [self.ids[text] for text in sorted(self._end_texts)]
        return list(dict.fromkeys(token for token in (*named, *used, *by_text) if token is not None))

    def suppressed_tokens(self) -> list[int]:
        """Return the tokens that are never generated, in the file's order, without ids that no token has. Raises
        CheckpointError for what is no list of ids, and where no other token is left."""
        name = "tokenizer.ggml.suppress_tokens"
        found = [token for token in self.parameters.list_of(int, name) or [] if token in range(self.size)]
        if len(set(found)) == self.size:
            raise CheckpointError(f"{self.parameters.where} suppresses all of its tokens ({name!r}).")
        return found

    @cached_property
    def _infill(self) -> dict[str, int]:
        """The infill tokens: those that the file names, else those with a known text, which are control tokens then."""
        infill: dict[str, int] = {}
        for use, names in INFILL.items():
            stated = [token for name in names if (token := self.special(name)) is not None]
            found = next((self.ids[text] for text in INFILL_TEXTS[use] if text in self.ids), None)
            if stated:
                infill[use] = stated[0]
            elif self._is_gguf and found is not None:
                infill[use] = found
                self._kinds[found] = CONTROL
        return infill

    @cached_property
    def _end_texts(self) -> frozenset[str]:
        """The texts that end a completion, whose tokens are control tokens then."""
        if not self._is_gguf:
            return frozenset()
        found = frozenset(END_TEXTS & self.ids.keys())
        for text in found:
            self._kinds[self.ids[text]] = CONTROL
        for text in _HARMONY & self.ids.keys():
            self._kinds[self.ids[text]] = USER_DEFINED
        if {"<|return|>", "<|call|>"} <= found or ("<|flush|>" in found and {"<|call|>", "<|calls|>"} & found):
            found = self._without(found, "<|end|>", USER_DEFINED)
        if "<|tool_response>" in found:
            found = self._without(found, "</s>", NORMAL)
        return found

    def _without(self, found: frozenset[str], text: str, kind: int) -> frozenset[str]:
        if text in found:
            self._kinds[self.ids[text]] = kind
        return found - {text}
