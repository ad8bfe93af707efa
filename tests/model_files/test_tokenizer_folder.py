"""Folders without tokenizer.json: vocab.json and merges.txt; files of any bytes as vocabularies by rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.errors import ModelFolderError
from onward.model_files.safetensors import SafetensorsFiles
from onward.model_files.tokenizer import HuggingFaceTokenizer
from tests.checkpoints.making import FUZZ, LETTERS, letters_tokenizer, with_bytes
from tests.checkpoints.test_tokenizer import tokenizer
from tests.examples import slow_but
from tests.model_files import test_tekken, test_tiktoken

DIGITS = ["1", "2", "12", "Ġ12"]
VOCABULARY = [*LETTERS, "Ġ", "ab", "abc", "Ã", "©", "Ã©", "Ì", "ģ", *DIGITS, "<|endoftext|>"]
MERGES_TEXT = "#version: 0.2\na b\nab c\nÃ ©\n1 2\nĠ 12\n"
END = len(VOCABULARY) - 1


def folder(path: Path, kind: str | None = "gpt2", **files: object) -> Path:
    names = {
        "vocab": {text: token for token, text in enumerate(VOCABULARY)},
        "config": {"model_type": kind, "eos_token_id": END},
        **files,
    }
    for name, value in names.items():
        (path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    (path / "merges.txt").write_text(MERGES_TEXT, encoding="utf-8")
    return path


def pieces(found: HuggingFaceTokenizer, text: str) -> list[str]:
    return [VOCABULARY[token] for token in found.encode(text, add_special_tokens=True)]


@pytest.mark.parametrize(("kind", "numbers"), [("gpt2", ["Ġ12"]), ("starcoder2", ["Ġ", "1", "2"])])
def test_text_is_cut_by_the_rule_of_the_model_type(kind: str, numbers: list[str], tmp_path: Path) -> None:
    found = HuggingFaceTokenizer(folder(tmp_path, kind))
    assert pieces(found, "abcab 12<|endoftext|>") == ["abc", "ab", *numbers, "<|endoftext|>"]
    assert found.is_special(END) and found.end_tokens == {END} and found.implicit_prefix(add_special_tokens=True) == 0


@pytest.mark.parametrize("stated", [{"text_config": {}}, {"num_hidden_layers": 2}])
def test_the_rule_of_a_model_that_reads_images_is_that_of_its_part_for_texts(
    stated: dict[str, Any], tmp_path: Path
) -> None:
    config = {"model_type": "qwen2_5_vl", "eos_token_id": END, **stated}
    assert pieces(HuggingFaceTokenizer(folder(tmp_path, config=config)), "abcab 12") == ["abc", "ab", "Ġ", "1", "2"]


CLASSES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "GPT-2's": ({"tokenizer_class": "GPT2Tokenizer"}, "opt", True),
    "another": ({"tokenizer_class": "CodeGenTokenizer"}, "opt", False),
    "of the model type": ({}, "opt", True),
    "null": ({"tokenizer_class": None}, "starcoder2", True),
    "of another model type": ({}, "phi", False),
}


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("start", ["abc", {"content": "abc", "special": True}])
def test_a_start_token_that_is_asked_for_comes_first_with_the_class_of_gpt2(
    name: str, start: object, tmp_path: Path
) -> None:
    """As in transformers 4: OPT's folders ask for it, without stating a class."""
    stated, kind, has_start = CLASSES[name]
    names = {"add_bos_token": True, "bos_token": start, **stated}
    found = HuggingFaceTokenizer(folder(tmp_path, kind, tokenizer_config=names))
    assert pieces(found, "ab") == ["abc"] * has_start + ["ab"]
    assert found.implicit_prefix(add_special_tokens=True) == has_start


def test_the_class_of_a_tokenizer_may_stand_in_the_models_configuration(tmp_path: Path) -> None:
    """As GPT-J's does."""
    config = {"model_type": "opt", "tokenizer_class": "CodeGenTokenizer"}
    names = {"add_bos_token": True, "bos_token": "abc"}
    assert pieces(HuggingFaceTokenizer(folder(tmp_path, config=config, tokenizer_config=names)), "ab") == ["ab"]


@pytest.mark.parametrize(
    ("names", "start"),
    [({}, "<|endoftext|>"), ({"special_tokens_map": {"bos_token": "abc"}}, "abc")],
    ids=["nowhere", "in the older file"],
)
def test_the_start_token_may_be_named_elsewhere_or_nowhere(names: dict[str, Any], start: str, tmp_path: Path) -> None:
    stated = folder(tmp_path, "opt", tokenizer_config={"add_bos_token": True}, **names)
    assert pieces(HuggingFaceTokenizer(stated), "ab") == [start, "ab"]


def test_a_start_token_that_is_no_token_is_refused(tmp_path: Path) -> None:
    names = {"add_bos_token": True, "bos_token": "<s>"}
    with pytest.raises(ModelFolderError, match=r"'add_bos_token'\) that vocab\.json does not have: '<s>'\. Save "):
        HuggingFaceTokenizer(folder(tmp_path, "opt", tokenizer_config=names))


def test_token_ids_are_those_of_a_gguf_file_with_the_same_vocabulary(tmp_path: Path) -> None:
    stated = letters_tokenizer()
    expected = tokenizer({**stated, "tokenizer.ggml.tokens": VOCABULARY,
                          "tokenizer.ggml.token_type": [1] * END + [3], "tokenizer.ggml.eos_token_id": END,
                          "tokenizer.ggml.merges": MERGES_TEXT.splitlines()[1:]})  # fmt: skip
    found = HuggingFaceTokenizer(folder(tmp_path))
    for text in ("abcab ba", "ab 12 <|endoftext|>c", "é", ""):
        assert found.encode(text, add_special_tokens=True) == expected.encode(text, add_special_tokens=True)


def test_qwen_composes_characters(tmp_path: Path) -> None:
    assert pieces(HuggingFaceTokenizer(folder(tmp_path, "qwen2")), "\u00e9") == ["Ã©"]
    assert HuggingFaceTokenizer(tmp_path).encode("e\u0301", add_special_tokens=False) == [VOCABULARY.index("Ã©")]


def test_the_configuration_adds_and_names_tokens(tmp_path: Path) -> None:
    made = folder(
        tmp_path,
        "qwen2",
        added_tokens={"<tool>": END + 1},
        tokenizer_config={"added_tokens_decoder": {str(END + 2): {"content": "<|im_end|>", "special": True}}},
        special_tokens_map={"eos_token": "<|im_end|>", "additional_special_tokens": [{"content": "<tool>"}]},
    )
    found = HuggingFaceTokenizer(made)
    assert found.encode("ab<tool><|im_end|>", add_special_tokens=True)[-2:] == [END + 1, END + 2]
    assert found.is_special(END + 1) and found.end_tokens == {END, END + 2}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"kind": "llama"}, "type 'llama' cuts text is not in them.*save_pretrained"),
        ({"kind": None}, "type 'None' cuts text"),
        ({"vocab": {"a": 0, "b": 2}}, "its ids have gaps"),
        ({"vocab": {"a": 0, "b": 0}}, "there twice"),
        ({"vocab": {"a": "0"}}, "not a JSON object of tokens"),
        ({"vocab": [1]}, "not a JSON object of tokens"),
        ({"vocab": {"x": 0}}, "which are not tokens"),
        ({"tokenizer_config": {"add_prefix_space": True}}, "puts a space before texts"),
        ({"added_tokens": {"<gap>": END + 2}}, "adds the token '<gap>'"),
    ],
)
def test_what_cannot_be_built_is_refused(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    made = folder(tmp_path, **changed)
    with pytest.raises(ModelFolderError, match=words):
        HuggingFaceTokenizer(made)
    assert any(problem for problem in SafetensorsFiles(made).problems())


@pytest.mark.parametrize("merges", ["", "#version: 0.2\n", "\n\n"])
def test_tokens_longer_than_bytes_without_merges_are_refused(merges: str, tmp_path: Path) -> None:
    """As for GGUF files: without merges, every text would become single bytes."""
    (folder(tmp_path) / "merges.txt").write_text(merges, encoding="utf-8")
    with pytest.raises(ModelFolderError, match="has no merges"):
        HuggingFaceTokenizer(tmp_path)
    assert any("has no merges" in problem for problem in SafetensorsFiles(tmp_path).problems())


def test_one_of_the_two_files_alone_is_not_a_tokenizer(tmp_path: Path) -> None:
    (folder(tmp_path) / "vocab.json").unlink()
    with pytest.raises(ModelFolderError, match=r"no tokenizer\.json"):
        HuggingFaceTokenizer(tmp_path)


OTHER_TYPES: tuple[Any, ...] = (None, True, [], {}, "x", -1, 1.5, 10**400, [[]], [None], {"1": {}}, {"": []}, {"9": 9})
OF_CONFIGURATIONS = {
    "config": ("model_type", "bos_token_id", "eos_token_id"),
    "generation_config": ("bos_token_id", "eos_token_id"),
    "tokenizer_config": (
        "add_prefix_space", "added_tokens_decoder", "tokenizer_class", "add_bos_token", "bos_token", "eos_token",
        "unk_token", "additional_special_tokens", "extra_special_tokens", "chat_template",
    ),
    "special_tokens_map": ("bos_token", "eos_token", "additional_special_tokens"),
    "added_tokens": ("<tool>",),
    "vocab": ("a",),
}  # fmt: skip
"""Keys that are read where the tokenizer is vocab.json and merges.txt."""


PLACES = [f"{name}/{key}" for name, keys in OF_CONFIGURATIONS.items() for key in keys]


@pytest.mark.parametrize("place", slow_but(PLACES[::3], PLACES))
def test_values_of_other_types_cause_no_traceback(place: str, tmp_path: Path) -> None:
    name, _, key = place.partition("/")
    path = folder(tmp_path, "qwen2") / f"{name}.json"
    whole = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for value in OTHER_TYPES:
        path.write_text(json.dumps(whole | {key: value}), encoding="utf-8")
        problems = SafetensorsFiles(tmp_path).problems()
        assert all(isinstance(problem, str) for problem in problems)
        try:
            HuggingFaceTokenizer(tmp_path).encode("abcab", add_special_tokens=True)
        except ModelFolderError as problem:
            assert str(problem).endswith((".", "again", "`")), problem


BY_RANK = {"tekken.json": test_tekken.written, "tiktoken.model": test_tiktoken.written}


@pytest.fixture(scope="module", params=BY_RANK)
def reading(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[bytes, Callable[[bytes], None]]:
    """The bytes of a file, and a function that reads a file of other bytes; only ModelFolderError may be raised."""
    path = BY_RANK[request.param](tmp_path_factory.mktemp("fuzz")) / request.param

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try:
            HuggingFaceTokenizer(path.parent)
        except ModelFolderError:
            return

    return path.read_bytes(), read


@FUZZ
@given(data=st.data())
def test_a_vocabulary_with_other_bytes_never_crashes(
    data: st.DataObject, reading: tuple[bytes, Callable[[bytes], None]]
) -> None:
    content, read = reading
    places = st.integers(0, len(content) - 1)
    read(with_bytes(content, data.draw(st.dictionaries(places, st.integers(0, 255), max_size=6))))
