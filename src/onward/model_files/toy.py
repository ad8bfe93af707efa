"""The toy as a model format: a folder with toy.json, which states how large it is, and the toy's vocabulary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from onward.errors import ModelFolderError
from onward.model_files.base import ModelFiles
from onward.model_files.files import json_problem, present, read_if_present

SIZES = "toy.json"
MAX_SIZES = {"blocks": 100_000, "context_length": 1 << 24}
SPECIALS = ("<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
WORDS = (" the", " and", " a", " to", " of", "ing", " once", " upon", " time", "\n\n", "🙂", "é")
END = 256


class ToyTokenizer:
    """Ids 0 … 255 are bytes, followed by the special tokens and a few longer tokens; the longest match wins."""

    bos_token: str | None = None
    eos_token: str | None = SPECIALS[0]
    start_token: int | None = END
    special_literals: tuple[str, ...] = SPECIALS
    end_tokens = frozenset({END})
    suppressed_tokens: frozenset[int] = frozenset()
    has_process = False
    chat_template = ""
    infill_tokens: Mapping[str, int] = MappingProxyType({})

    def __init__(self) -> None:
        self._token_bytes = [bytes([byte]) for byte in range(256)]
        self._token_bytes += [literal.encode() for literal in (*SPECIALS, *WORDS)]
        self._ids = {literal: 256 + index for index, literal in enumerate((*SPECIALS, *WORDS))}
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._ids, key=len, reverse=True))))
        self.size = len(self._token_bytes)
        self.max_token_bytes = max(map(len, self._token_bytes))

    def token_bytes(self, token: int) -> bytes:
        return self._token_bytes[token]

    def is_special(self, token: int) -> bool:
        return END <= token < END + len(SPECIALS)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = []
        end = 0
        for found in self._pattern.finditer(text):
            ids += text[end : found.start()].encode("utf-8", "replace")
            ids.append(self._ids[found[0]])
            end = found.end()
        ids += text[end:].encode("utf-8", "replace")
        return ids

    def implicit_prefix(self, *, add_special_tokens: bool) -> int:
        return 0

    def token_id(self, literal: str) -> int | None:
        return self._ids.get(literal)


class ToyFiles(ModelFiles):
    """A folder with `{"blocks": …, "context_length": …}` in toy.json: KV blocks, and tokens per sequence."""

    format = "toy"
    is_listed = False
    packages = ()
    loading_only_files = ()

    @classmethod
    def matches(cls, path: Path) -> bool:
        return bool(present(path, [SIZES]))

    def paths(self) -> list[Path]:
        return present(self.path, [SIZES])

    def problems(self) -> list[str]:
        if problem := json_problem(self.path / SIZES):
            return [problem]
        stated = self._stated()
        wrong = [name for name, limit in MAX_SIZES.items() if not _is_within(stated.get(name), limit)]
        return [f"{self.path / SIZES}: {name} must be a positive integer, at most {MAX_SIZES[name]}." for name in wrong]

    def facts(self) -> dict[str, int | str]:
        return {"context_length": self._stated()["context_length"], "vocabulary": ToyTokenizer().size, "kind": "toy"}

    def sizes(self) -> tuple[int, int]:
        """Return the KV blocks, and the tokens per sequence. Raises ModelFolderError."""
        if problems := self.problems():
            raise ModelFolderError(" ".join(problems))
        stated = self._stated()
        return stated["blocks"], stated["context_length"]

    def load_tokenizer(self, cache_dir: Path | None = None) -> ToyTokenizer:
        return ToyTokenizer()

    def _stated(self) -> dict[str, int]:
        return read_if_present(self.path / SIZES)


def _is_within(value: object, limit: int) -> bool:
    return type(value) is int and 0 < value <= limit
