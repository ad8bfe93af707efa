"""What an engine's process keeps of a tokenizer: the same bytes for every id."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.engine.model import Tokenizer
from onward.model_files.gguf import GGUFFiles
from onward.model_files.tokenizer import HuggingFaceTokenizer
from onward.model_files.toy import ToyTokenizer
from onward.model_files.vocabulary import MAX_PADDING_TOKENS, PackedVocabulary, difference
from onward.models.resolve import built_in_folder

from .tiny_tokenizers import byte_level, save, sentencepiece


@pytest.fixture(params=["built-in", "byte level", "sentencepiece", "toy"])
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    match request.param:
        case "built-in":
            return GGUFFiles(built_in_folder("storyteller")).load_tokenizer()
        case "byte level":
            return HuggingFaceTokenizer(save(byte_level(), tmp_path))
        case "sentencepiece":
            return HuggingFaceTokenizer(save(sentencepiece("normalizer"), tmp_path))
        case _:
            return ToyTokenizer()


def test_every_token_has_the_bytes_and_the_kind_that_it_has_in_the_tokenizer(tokenizer: Tokenizer) -> None:
    packed = PackedVocabulary.decode(PackedVocabulary.create(tokenizer).encode())
    ids = [-1, *range(tokenizer.size + 2)]
    assert (packed.size, packed.end_tokens) == (tokenizer.size, tokenizer.end_tokens)
    assert [packed.is_special(token) for token in ids] == [tokenizer.is_special(token) for token in ids]
    assert [packed.token_bytes(token) for token in ids[1:-2]] == [tokenizer.token_bytes(token) for token in ids[1:-2]]
    assert packed.token_bytes(tokenizer.size) == packed.token_bytes(-1) == b""


class Words(ToyTokenizer):
    """A vocabulary with these tokens."""

    def __init__(self, *words: bytes) -> None:
        super().__init__()
        self._words = words
        self.size = len(words)

    def token_bytes(self, token: int) -> bytes:
        return self._words[token]


def test_vocabularies_with_the_same_bytes_do_not_differ_even_where_one_is_padded() -> None:
    own, padding = [bytes([token]) for token in range(256)], [b""] * MAX_PADDING_TOKENS
    assert difference(Words(*own), Words(*own)) == ""
    assert difference(Words(*own), Words(*own, *padding)) == difference(Words(*own, *padding), Words(*own)) == ""
    assert difference(Words(*own), Words(*own, b"", *padding)) == "it has 1281 tokens instead of 256"
    assert difference(Words(*own), Words(*own[:7], b"x", *own[8:])) == "token 7 is b'x' instead of b'\\x07'"
