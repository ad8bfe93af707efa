"""Text to token ids and token ids to exact bytes, for the tokenizer families in use."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from onward.errors import ModelFolderError, TextNotEncodable
from onward.model_files import tokenizer as tokenizer_module
from onward.model_files.gguf import GGUFFiles
from onward.model_files.tokenizer import HuggingFaceTokenizer
from tests.checkpoints.making import floats, write_gguf
from tests.checkpoints.tiny import tiny
from tests.examples import UNICODE, examples
from tests.model_files.tiny_tokenizers import END, START, byte_level, save, sentencepiece

texts = st.text(UNICODE, max_size=40)
pieces = st.lists(texts | st.sampled_from([END, START, "<note>", "é è", " ", "\n\n"]), max_size=6).map("".join)


def joined_bytes(tokenizer: HuggingFaceTokenizer, ids: list[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    names = {"eos_token": END, "bos_token": None}
    return HuggingFaceTokenizer(save(byte_level(), tmp_path_factory.mktemp("bpe"), tokenizer_config=names))


@pytest.fixture(scope="module", params=["normalizer", "metaspace"])
def spm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    config = {"bos_token_id": 1, "eos_token_id": 2}
    folder = save(sentencepiece(request.param), tmp_path_factory.mktemp("spm"), config=config)
    return HuggingFaceTokenizer(folder)


@settings(max_examples=examples(200))
@given(text=pieces)
def test_the_bytes_of_byte_level_tokens_are_those_of_the_text(bpe: HuggingFaceTokenizer, text: str) -> None:
    assert joined_bytes(bpe, bpe.encode(text, add_special_tokens=True)) == text.encode()


@settings(max_examples=examples(100))
@given(text=texts.filter(lambda text: "▁" not in text))
def test_the_bytes_of_sentencepiece_tokens_are_a_space_and_the_text(spm: HuggingFaceTokenizer, text: str) -> None:
    joined = joined_bytes(spm, spm.encode(text, add_special_tokens=False))
    assert joined in ((b" " + text.encode()), text.encode())
    if text and text[0] not in " ":
        assert joined == b" " + text.encode()


def test_every_byte_of_a_character_that_is_split_over_tokens_is_kept(
    spm: HuggingFaceTokenizer,
) -> None:
    ids = spm.encode("🎉", add_special_tokens=False)
    assert [spm.token_bytes(token) for token in ids[-4:]] == [bytes([byte]) for byte in "🎉".encode()]


def test_literals_of_special_tokens_in_a_text_become_special_tokens(bpe: HuggingFaceTokenizer) -> None:
    ids = bpe.encode(f"a{END}b", add_special_tokens=False)
    end = bpe.token_id(END)
    assert end in ids
    assert end is not None
    assert bpe.is_special(end)
    assert bpe.token_bytes(end) == END.encode()
    assert bpe.special_literals == (END, START)


def test_added_tokens_that_are_not_special_are_visible_literals(bpe: HuggingFaceTokenizer) -> None:
    note, accents = bpe.token_id("<note>"), bpe.token_id("é è")
    assert note is not None
    assert accents is not None
    assert not bpe.is_special(note)
    assert bpe.token_bytes(accents) == "é è".encode()
    assert bpe.token_id("cat") is None


def test_an_implicit_start_token_comes_first_and_is_counted(spm: HuggingFaceTokenizer) -> None:
    plain = spm.encode("the cat", add_special_tokens=False)
    assert spm.encode("the cat", add_special_tokens=True) == [1, *plain]
    assert spm.implicit_prefix(add_special_tokens=True) == 1
    assert spm.implicit_prefix(add_special_tokens=False) == 0
    assert spm.encode("", add_special_tokens=True) == [1]


def test_an_end_token_that_the_post_processor_appends_is_not_added(tmp_path: Path) -> None:
    tokenizer = sentencepiece("metaspace")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="$A $B", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    loaded = HuggingFaceTokenizer(save(tokenizer, tmp_path))
    assert loaded.encode("cat", add_special_tokens=True) == [
        1,
        *loaded.encode("cat", add_special_tokens=False),
    ]


@pytest.mark.parametrize(("choice", "prefix"), [(True, 1), (False, 0)])
def test_add_bos_token_decides_where_transformers_obeys_it(tmp_path: Path, choice: bool, prefix: int) -> None:
    tokenizer = sentencepiece("metaspace")
    if choice:
        tokenizer.post_processor = processors.ByteLevel()
    names = {
        "tokenizer_class": "LlamaTokenizerFast",
        "add_bos_token": choice,
        "bos_token": {"content": "<s>"},
    }
    loaded = HuggingFaceTokenizer(save(tokenizer, tmp_path, tokenizer_config=names))
    assert loaded.implicit_prefix(add_special_tokens=True) == prefix


def test_start_and_end_tokens_come_from_all_the_configs(tmp_path: Path) -> None:
    names = {"bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    folder = save(
        sentencepiece("normalizer"),
        tmp_path,
        special_tokens_map=names,
        generation_config={"eos_token_id": [2, 40]},
        config={"eos_token_id": 41},
    )
    loaded = HuggingFaceTokenizer(folder)
    assert (loaded.bos_token, loaded.eos_token, loaded.start_token) == ("<s>", "</s>", 1)
    assert loaded.end_tokens == {2, 40, 41}


def test_suppressed_tokens_are_those_of_generation_config_or_where_there_is_none_of_config(tmp_path: Path) -> None:
    config = {"suppress_tokens": [5, 6]}
    for generation, expected in (({"suppress_tokens": [7]}, {7}), ({"eos_token_id": 2}, set()), ({}, {5, 6})):
        folder = save(byte_level(), tmp_path, config=config, generation_config=generation)
        assert HuggingFaceTokenizer(folder).suppressed_tokens == expected
    assert (
        HuggingFaceTokenizer(save(byte_level(), tmp_path, config={"suppress_tokens": None})).suppressed_tokens == set()
    )


@pytest.mark.parametrize(
    ("stated", "words"), [("5", "is no list"), ([1, "2"], "is no list"), (list(range(400)), "suppresses all")]
)
def test_suppressed_tokens_that_cannot_be_used_are_refused(stated: object, words: str, tmp_path: Path) -> None:
    folder = save(byte_level(), tmp_path, generation_config={"suppress_tokens": stated})
    with pytest.raises(ModelFolderError, match=words):
        HuggingFaceTokenizer(folder)


def test_without_a_start_token_the_end_token_replaces_an_empty_prompt(
    bpe: HuggingFaceTokenizer,
) -> None:
    assert (bpe.bos_token, bpe.eos_token) == (None, END)
    assert bpe.start_token == bpe.token_id(END)


def test_a_folder_that_names_no_end_tokens_has_none(tmp_path: Path) -> None:
    loaded = HuggingFaceTokenizer(save(byte_level(), tmp_path))
    assert (loaded.bos_token, loaded.eos_token, loaded.start_token) == (None, None, None)
    assert loaded.end_tokens == frozenset()


def test_ids_beyond_the_vocabulary_have_no_bytes(bpe: HuggingFaceTokenizer, tmp_path: Path) -> None:
    assert bpe.token_bytes(bpe.size) == b""
    assert bpe.token_bytes(-1) == b""
    holes = Tokenizer(models.BPE(vocab={"a": 0, "b": 5}, merges=[]))
    loaded = HuggingFaceTokenizer(save(holes, tmp_path))
    assert loaded.size == 6
    assert [loaded.token_bytes(token) for token in range(6)] == [b"a", b"", b"", b"", b"", b"b"]


def test_saved_truncation_and_padding_are_turned_off(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    loaded = HuggingFaceTokenizer(save(tokenizer, tmp_path))
    assert joined_bytes(loaded, loaded.encode("xyz uvw", add_special_tokens=True)) == b"xyz uvw"


def test_a_lone_surrogate_becomes_a_question_mark(bpe: HuggingFaceTokenizer) -> None:
    assert joined_bytes(bpe, bpe.encode("a\ud800b", add_special_tokens=False)) == b"a?b"


def test_byte_like_literals_are_literal_without_byte_fallback(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"<0x41>": 0}, merges=[]))
    tokenizer.decoder = decoders.Metaspace()
    assert HuggingFaceTokenizer(save(tokenizer, tmp_path)).token_bytes(0) == b"<0x41>"


def test_the_bytes_of_an_added_token_of_spaces_are_spaces(tmp_path: Path) -> None:
    tokenizer = sentencepiece("normalizer")
    text = next(piece for piece in tokenizer.get_vocab() if piece.startswith("▁") and len(piece) > 1)
    tokenizer.add_tokens([AddedToken(text, normalized=False)])
    loaded = HuggingFaceTokenizer(save(tokenizer, tmp_path))
    token = tokenizer.token_to_id(text)
    assert token is not None and loaded.token_bytes(token) == text.replace("▁", " ").encode()


def test_threads_may_encode_concurrently(bpe: HuggingFaceTokenizer) -> None:
    lines = [f"the cat {number} sat" * 20 for number in range(64)]
    with ThreadPoolExecutor(4) as pool:
        encoded = pool.map(lambda line: bpe.encode(line, add_special_tokens=False), lines)
        assert [joined_bytes(bpe, ids).decode() for ids in encoded] == lines


def test_a_long_text_has_the_ids_of_its_parts(bpe: HuggingFaceTokenizer, spm: HuggingFaceTokenizer) -> None:
    """Long texts are encoded by another function of the library."""
    line = "the cat é\n"
    for tokenizer in (bpe, spm):
        ids = tokenizer.encode(line * 2000, add_special_tokens=False)
        assert joined_bytes(tokenizer, ids).decode().strip(" ") == line * 2000
    one = bpe.encode(line, add_special_tokens=False)
    assert bpe.encode(line * 2000, add_special_tokens=False) == one * 2000


def test_other_threads_run_while_a_long_text_is_encoded(bpe: HuggingFaceTokenizer) -> None:
    ticks, done = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    ticker = threading.Thread(target=tick)
    ticker.start()
    before = ticks
    bpe._encode("the cat sat é " * 25_000)
    during = ticks - before
    done.set()
    ticker.join()
    assert during > 10, "one tick before the library begins, one after it, would be all"


@pytest.mark.parametrize("ends", [-1, [2, -1], 1 << 70, True, [None, "2"]])
def test_end_tokens_that_are_not_token_ids_are_ignored(tmp_path: Path, ends: object) -> None:
    folder = save(byte_level(), tmp_path, config={"eos_token_id": ends})
    assert HuggingFaceTokenizer(folder).end_tokens <= {2}


def test_a_missing_tokenizer_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"has no tokenizer\.json"):
        HuggingFaceTokenizer(tmp_path)


@pytest.mark.parametrize("content", ["{", "{}", json.dumps({"model": {"type": "Nonsense"}})])
def test_a_broken_tokenizer_file_is_a_broken_folder(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelFolderError, match=r"is not (a )?valid"):
        HuggingFaceTokenizer(tmp_path)


def test_a_decoder_that_does_not_define_token_bytes_is_refused(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.decoder = decoders.WordPiece()
    with pytest.raises(ModelFolderError, match="WordPiece"):
        HuggingFaceTokenizer(save(tokenizer, tmp_path))


def test_a_text_that_makes_the_library_panic_is_rejected(
    bpe: HuggingFaceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2's expression needs more steps than the library allows for ten million spaces."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(x+x+)+y"), "isolated")
    monkeypatch.setattr(bpe, "_library", tokenizer)
    with pytest.raises(TextNotEncodable, match="retry-limit"):
        bpe.encode("x" * 40, add_special_tokens=False)
    assert bpe.encode("the cat", add_special_tokens=False)


def test_the_longest_token_is_known(tmp_path: Path) -> None:
    saved = HuggingFaceTokenizer(save(byte_level(), tmp_path))
    assert saved.max_token_bytes == max(len(saved.token_bytes(token)) for token in range(saved.size)) > 1


def test_after_a_very_long_text_freed_memory_is_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[str] = []
    monkeypatch.setattr(tokenizer_module, "trim_heap", lambda: trimmed.append("once"))
    monkeypatch.setattr(tokenizer_module, "MIN_TRIMMED_CHARACTERS", 10_000)
    saved = HuggingFaceTokenizer(save(byte_level(), tmp_path))
    for num_characters in (10, 5000, 10_000, 10_001):
        saved.encode("a" * num_characters, add_special_tokens=False)
    assert trimmed == ["once"]


TEMPLATES: dict[str, tuple[object, str | None, str]] = {
    "a text": ("{{ a }}", None, "{{ a }}"),
    "several by name": ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], None, "d"),
    "several without a default": ([{"name": "tool_use", "template": "t"}], None, ""),
    "a file of its own": ("{{ a }}", "{{ b }}\n", "{{ b }}\n"),
    "a file alone": (None, "{{ b }}", "{{ b }}"),
    "nothing": (None, None, ""),
    "a number": (5, None, ""),
    "junk": ([5, None, {"name": []}], None, ""),
}
"""What tokenizer_config.json states, chat_template.jinja, and the template (transformers, utils/hub.py and
tokenization_utils_base.py)."""


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_chat_template_is_where_transformers_looks(name: str, tmp_path: Path) -> None:
    stated, file, template = TEMPLATES[name]
    save(byte_level(), tmp_path, tokenizer_config={} if stated is None else {"chat_template": stated})
    if file is not None:
        (tmp_path / "chat_template.jinja").write_text(file, encoding="utf-8")
    assert HuggingFaceTokenizer(tmp_path).chat_template == template


def test_the_chat_template_of_a_gguf_file_is_the_one_that_it_states(tmp_path: Path) -> None:
    metadata, tensors = tiny("llama")
    for value, template in (("{{ a }}", "{{ a }}"), (5, ""), (None, "")):
        stated = {} if value is None else {"tokenizer.chat_template": value}
        path = write_gguf(
            tmp_path / "m.gguf", metadata | stated, {name: floats(each) for name, each in tensors.items()}
        )
        assert GGUFFiles(path).load_tokenizer(tmp_path).chat_template == template
