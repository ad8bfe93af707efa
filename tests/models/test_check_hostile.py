"""Files of a model are untrusted: every fault is reported in a sentence, without much memory or time."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from onward.errors import ModelFolderError, SetupError
from onward.model_files import files
from onward.model_files.formats import files_at
from onward.model_files.tokenizer import MAX_VOCABULARY_TOKENS, HuggingFaceTokenizer
from onward.models.check import check_model, problems
from onward.models.resolve import resolve
from tests.examples import slow_but
from tests.models.story_folder import tokenizer, write_story_folder

DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
MUTATIONS = slow_but(range(5), range(60))


NUM_TOKENS = 512
"""Of the 8,192 that the built-in model has: to read all of them takes longer than most of these tests."""


@cache
def small_tokenizer() -> bytes:
    content = json.loads(tokenizer().tokenizer)
    vocabulary = content["model"]["vocab"]
    content["model"]["vocab"] = {token: number for token, number in vocabulary.items() if number < NUM_TOKENS}
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in content["model"]["merges"]]
    content["model"]["merges"] = [pair for pair in merges if vocabulary["".join(pair)] < NUM_TOKENS]
    return json.dumps(content).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_story_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(small_tokenizer())
    return tmp_path


def read_all(folder: Path) -> None:
    """Do what `models show`, `tokenize` and the start of `serve` do with the files, up to the graph."""
    check_model(folder)
    found = files_at(folder)
    assert found is not None
    found.facts()
    found.load_tokenizer()


def sentence(folder: Path) -> str:
    with pytest.raises(ModelFolderError) as raised:
        read_all(folder)
    return str(raised.value)


def changed(folder: Path, change: Callable[[dict[str, Any]], None], name: str = "tokenizer.json") -> Path:
    content = json.loads((folder / name).read_bytes())
    change(content)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("token", [MAX_VOCABULARY_TOKENS, 2**32 - 1])
def test_a_token_id_beyond_any_vocabulary_is_refused(folder: Path, token: int) -> None:
    def change(content: dict[str, Any]) -> None:
        content["model"]["vocab"]["zz"] = token

    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = sentence(changed(folder, change))
    assert f"it has the token id {token}, beyond any vocabulary" in words
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "KiB"


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (DEEP, "nested too deeply"),
        (b"[" * 100_000, "not"),
        (b'\xff\xfe{"a": 1}', "not valid JSON"),
        (b'{"a": "\xff"}', "not"),
        (b'{"a": ' + b"9" * 5_000 + b"}", ""),
        (b"null", "not a JSON object"),
        (b"", "not valid JSON"),
    ],
    ids=["deep", "open", "UTF-16", "bytes", "digits", "null", "empty"],
)
def test_json_that_cannot_be_used_is_reported_in_one_message(
    folder: Path, name: str, content: bytes, words: str
) -> None:
    (folder / name).write_bytes(content)
    try:
        read_all(folder)
    except ModelFolderError as problem:
        assert name in str(problem)
        assert words in str(problem)
    else:
        assert words == "", "a number of 5,000 digits may be skipped"


@pytest.mark.parametrize("name", JSON_FILES)
def test_a_file_of_any_size_is_not_read_whole(folder: Path, name: str) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    assert "more than any model needs" in sentence(folder)


def test_a_vocabulary_of_any_size_is_not_built(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_TOKENIZER_ENTRIES", 20_000)
    vocabulary = {f"t{index}": index for index in range(20_000)}
    words = sentence(changed(folder, lambda content: content["model"]["vocab"].update(vocabulary)))
    assert "more entries than any vocabulary" in words


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no such pipes here")
@pytest.mark.parametrize("name", [*JSON_FILES, "openvino_model.xml", "openvino_model.bin"])
def test_a_pipe_is_refused_and_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert f"{name} is not a regular file" in sentence(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "openvino_model.xml", "openvino_model.bin"])
def test_a_link_to_itself_leads_nowhere(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(folder / name)
    if name == "config.json":  # optional: treated as absent
        read_all(folder)
    else:
        assert "leads nowhere" in sentence(folder)


@pytest.mark.parametrize(
    "value", slow_but([None, "x", 10**30, {"a": []}], [None, True, [], {}, "x", -1, 0, 1.5, 10**30, [[]], {"a": []}])
)
@pytest.mark.parametrize(
    "key",
    ["max_position_embeddings", "text_config", "vocab_size", "model_type", "eos_token_id", "bos_token_id",
     "bos_token", "eos_token", "add_bos_token", "tokenizer_class"],
)  # fmt: skip
def test_values_of_other_types_cause_no_traceback(folder: Path, key: str, value: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({key: value}), encoding="utf-8")
    changed(folder, lambda content: content.update({key: value}), "config.json")
    found = files_at(folder)
    assert found is not None
    assert problems(folder) == []
    facts = found.facts()
    assert facts.get("context_length", 1) in range(1, 1 << 32)
    found.load_tokenizer()


@pytest.mark.parametrize("seed", MUTATIONS)
def test_a_changed_tokenizer_loads_or_is_reported_in_one_message(
    folder: Path, seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(seed)
    content = json.loads((folder / "tokenizer.json").read_bytes())
    for _ in range(rng.randint(1, 3)):
        _mutate(content, rng)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    _load(folder)


@pytest.mark.parametrize("seed", MUTATIONS)
def test_changed_bytes_of_a_tokenizer_load_or_are_reported_in_one_sentence(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    content = bytearray((folder / "tokenizer.json").read_bytes())
    for _ in range(rng.randint(1, 20)):
        content[rng.randrange(len(content))] = rng.choice(b'{}[]",:0919\\\xff\x00ae')
    (folder / "tokenizer.json").write_bytes(content)
    _load(folder)


def _load(folder: Path) -> None:
    try:
        check_model(folder)
        tokenizer = HuggingFaceTokenizer(folder)
    except ModelFolderError as problem:
        assert str(problem).endswith(".")
        assert "tokenizer.json" in str(problem)
    else:
        assert tokenizer.size <= MAX_VOCABULARY_TOKENS


def _mutate(content: dict[str, Any], rng: random.Random) -> None:
    """Replace, remove or repeat one value, at a random depth."""
    place: Any = content
    while True:
        if not place:
            return
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        inner = place[key]
        if not isinstance(inner, (dict, list)) or not inner or rng.random() < 0.3:
            break
        place = inner
    values: list[Any] = [
        None,
        True,
        -1,
        2**31,
        2**63,
        1e308,
        "",
        "x" * 1000,
        [],
        {},
        [[]],
        {"type": "Sequence"},
        "(a+)+$",
    ]
    if rng.random() < 0.2 and isinstance(place, dict):
        del place[key]
    else:
        place[key] = rng.choice(values)


@pytest.mark.parametrize("name", ["x" * 5_000, "~no-such-user-of-this-machine/model", "a\0b", "./" + "y" * 300])
def test_a_name_that_cannot_be_a_path_is_reported_in_one_message(name: str) -> None:
    with pytest.raises(SetupError):
        resolve(name, allow_download=False)


@pytest.mark.parametrize("sizes", [{}, {"blocks": 10**12, "context_length": 10**18}, {"blocks": "1"}, {"blocks": True}])
def test_a_toy_of_any_size_is_reported_in_one_message(tmp_path: Path, sizes: dict[str, Any]) -> None:
    (tmp_path / "toy.json").write_text(json.dumps(sizes), encoding="utf-8")
    assert all("must be a positive integer, at most" in problem for problem in problems(tmp_path))
    assert len(problems(tmp_path)) == 2
