"""tiktoken.model, and the special tokens that tokenizer_config.json names: tokens follow from ranks by tiktoken's
rule."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import ModelFolderError
from onward.model_files.files import tokenizer_source
from onward.model_files.safetensors import SafetensorsFiles
from onward.model_files.tokenizer import HuggingFaceTokenizer
from tests.model_files.test_tekken import VOCABULARY, by_rank

UNREACHABLE = b" zqx"
"""A token that no two tokens make: only a piece that is all of it becomes it."""
WORDS = [*VOCABULARY, "汉字".encode(), UNREACHABLE]
FIRST = len(WORDS)
NAMED = {0: ("[BOS]", True), 1: ("[EOS]", True), 2: ("<|im_end|>", True), 9: ("◁think▷", False), 255: ("[PAD]", True)}


def lines(words: list[bytes] = WORDS) -> list[str]:
    return [f"{base64.b64encode(word).decode()} {rank}" for rank, word in enumerate(words)]


def configuration(named: dict[int, tuple[str, bool]] = NAMED, **changed: Any) -> dict[str, Any]:
    added = {str(FIRST + place): {"content": text, "special": special} for place, (text, special) in named.items()}
    return {
        "tokenizer_class": "TikTokenTokenizer", "bos_token": "[BOS]", "eos_token": "[EOS]",
        "added_tokens_decoder": added, **changed,
    }  # fmt: skip


def written(folder: Path, *, config: dict[str, Any] | None = None, content: str | None = None) -> Path:
    (folder / "tiktoken.model").write_text("\n".join(lines()) + "\n" if content is None else content, encoding="utf-8")
    stated = configuration() if config is None else config
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": FIRST + 2}), encoding="utf-8")
    return folder


def expected(words: list[str]) -> list[int]:
    return [token for word in words for token in by_rank(word.encode(), vocabulary=WORDS, first=0)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(written(tmp_path_factory.mktemp("tiktoken")))


def test_a_text_is_cut_and_merged_by_rank_without_a_start_token(found: HuggingFaceTokenizer) -> None:
    words = ["there", " the", " inner", "Abab", " é", "汉字", "ab", "123", "4", " zqx", "'s", " [["]
    text = "".join(words)
    ids = found.encode(text, add_special_tokens=True)
    assert ids == expected(["there", " the", " inner", "Abab", " é", "汉字", "ab", "123", "4", " zqx's", " [["])
    assert b"".join(found.token_bytes(token) for token in ids) == text.encode()


def test_a_piece_that_is_a_token_is_not_merged_from_smaller_ones(found: HuggingFaceTokenizer) -> None:
    assert found.encode(UNREACHABLE.decode(), add_special_tokens=False) == [WORDS.index(UNREACHABLE)]


@given(text=st.text(st.sampled_from("abtherin"), min_size=1, max_size=24))
def test_a_word_has_the_tokens_of_its_ranks(text: str, found: HuggingFaceTokenizer) -> None:
    assert found.encode(text, add_special_tokens=False) == expected([text])


def test_special_tokens_are_those_that_the_configuration_names_and_reserved_ones(found: HuggingFaceTokenizer) -> None:
    text = f"[BOS]a<|im_end|><|reserved_token_{FIRST + 3}|>◁think▷[PAD]"
    ids = found.encode(text, add_special_tokens=False)
    assert ids == [FIRST, *expected(["a"]), FIRST + 2, FIRST + 3, FIRST + 9, FIRST + 255]
    assert b"".join(found.token_bytes(token) for token in ids) == text.encode()
    assert found.is_special(FIRST + 3) and not found.is_special(FIRST + 9)
    assert found.end_tokens == {FIRST + 1, FIRST + 2} and found.bos_token == "[BOS]" and found.size == FIRST + 256


def test_two_more_special_tokens_may_be_named(tmp_path: Path) -> None:
    made = HuggingFaceTokenizer(written(tmp_path, config=configuration({**NAMED, 257: ("<|last|>", True)})))
    assert made.encode("<|last|>", add_special_tokens=False) == [FIRST + 257]
    assert made.encode(f"<|reserved_token_{FIRST + 256}|>", add_special_tokens=False) == [FIRST + 256]


def test_tokenizer_json_counts_more(tmp_path: Path) -> None:
    written(tmp_path)
    assert tokenizer_source(tmp_path) == "tiktoken.model"
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert tokenizer_source(tmp_path) == "tokenizer.json"


def _changed(rank: int, line: str) -> str:
    return "\n".join([*lines()[:rank], line, *lines()[rank + 1 :]])


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "another class": ({"config": configuration(tokenizer_class="PreTrainedTokenizerFast")}, "instead of 'TikTokenTok"),
    "no class": ({"config": configuration(tokenizer_class=None)}, "states 'None' as 'tokenizer_class'"),
    "no special tokens": ({"config": configuration({})}, "names special tokens with ids from 0 to -1"),
    "a cut file": ({"content": "\n".join(lines()[:-8])}, f"but tiktoken.model has {FIRST - 8} tokens before them"),
    "a special token among others": ({"config": configuration({-1: ("[BOS]", True)})}, f"ids from {FIRST - 1} to"),
    "a special token far away": ({"config": configuration({258: ("[BOS]", True)})}, f"to {FIRST + 258} "),
    "a special token twice": ({"config": configuration({0: ("[A]", True), 1: ("[A]", True)})}, "special token twice"),
    "a special token like another": ({"config": configuration({0: ("the", True)})}, "like one of tiktoken.model"),
    "an empty special token": ({"config": configuration({0: ("", True)})}, "special token twice"),
    "a rank twice": ({"content": _changed(99, "YQ== 98")}, "gaps in its ranks"),
    "a token twice": ({"content": _changed(99, "YQ== 99")}, "tokens twice"),
    "no base64": ({"content": _changed(99, "~ 99")}, "not written in base64"),
    "another line": ({"content": _changed(99, "YQ== 99 1")}, "a line that is not a token in base64 and its rank"),
    "countless lines": ({"content": "\n" * ((1 << 20) + 1)}, "more lines than any vocabulary"),
    "nothing": ({"content": ""}, "but tiktoken.model has 0 tokens before them"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_is_reported_in_one_message(name: str, tmp_path: Path) -> None:
    changed, words = BROKEN[name]
    with pytest.raises(ModelFolderError, match=words):
        HuggingFaceTokenizer(written(tmp_path, **changed))
    assert any(words in problem for problem in SafetensorsFiles(tmp_path).problems())
