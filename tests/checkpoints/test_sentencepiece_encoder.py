"""Token ids are those of Google's sentencepiece, for models that it trains here."""

from __future__ import annotations

import asyncio
import io
import itertools
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.checkpoints.normalization import CharacterMap, Normalizer, Rules
from onward.checkpoints.sentencepiece import read_sentence_piece
from onward.checkpoints.sentencepiece_encoder import BytePairs, SentencePieceEncoder, Unigram, around, needs_encoder
from onward.errors import CheckpointError
from onward.model_files.tokenizer import HuggingFaceTokenizer
from onward.offload import MAX_INLINE_SIZE, Abandoned, inline_or_on_thread
from tests.checkpoints.making import FUZZ, with_bytes
from tests.checkpoints.test_sentencepiece import BPE, PLAIN, folder, message, model_bytes
from tests.examples import UNICODE, examples
from tests.waiting import PATIENCE_SECONDS, until

sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed: pip install onward[test]")

LINES = [
    "The quick brown fox, jumps over the lazy dog.", "   spaces  between   and behind   ",
    "tabs\tand\r\nline ends",
    "========== ---------- !!!!!!!!!! 11111111", "Ⅷ ﬁne ｆｕｌｌ　ｗｉｄｔｈ ①②③",
    "ｶﾞｷﾞ か\u3099 が 吾輩は猫である。名前はまだ無い。",
    "e\u0301 ｅ\u0301 A\u030a \u0301", "👩\u200d👩\u200d👧 🙂🇩🇪", "שלום مرحبا ﷺ",
    "हिन्दी क्षि", "한국어 \u1100\u1161\u11a8 조선말",
    "no\u00a0break\u200bzero\u3000wide\u0000\u0001", "<tool>x<tool> y <0x41> <unk> ===", "▁▁a ▁", "", " ", "\n",
    "def f(x):\n    return x[1:] == 'a'  # ok", "Straße ÄÖÜ äöü ŒUVRE ﬀ ŉ",
]  # fmt: skip
CASES = [
    *itertools.product(("unigram", "bpe"), ("nmt_nfkc", "identity"), (True, False), (True,)),
    ("unigram", "nfkc_cf", False, False),
    ("bpe", "identity", False, False),
]


def trained(kind: str, normalisation: str, drops_spaces: bool, has_space_before: bool, **more: Any) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in LINES if "\0" not in line] * 3),
        model_writer=model,
        vocab_size=420,
        hard_vocab_limit=False,
        model_type=kind,
        normalization_rule_name=normalisation,
        remove_extra_whitespaces=drops_spaces,
        add_dummy_prefix=has_space_before,
        character_coverage=0.98,
        minloglevel=3,
        num_threads=1,
        **more,
    )
    return model.getvalue()


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def content(request: pytest.FixtureRequest) -> bytes:
    *_, drops_spaces, _ = request.param
    symbols = ["<tool>", "==="] if drops_spaces else []
    return trained(*request.param, byte_fallback=not drops_spaces, user_defined_symbols=symbols)


@pytest.fixture(scope="module")
def both(content: bytes) -> tuple[Any, SentencePieceEncoder]:
    encoder = SentencePieceEncoder(read_sentence_piece(content, "m"), "m")
    return sentencepiece.SentencePieceProcessor(model_proto=content), encoder


def texts() -> list[str]:
    """The lines, halves of two lines joined, and each line three times."""
    cut = [line[len(line) // 2 :] + other[: len(other) // 2] for line, other in itertools.pairwise(LINES)]
    return [*LINES, *cut, *(line * 3 for line in LINES)]


def test_a_folder_encodes_as_the_library_does(content: bytes, tmp_path: Path) -> None:
    library = sentencepiece.SentencePieceProcessor(model_proto=content)
    found = HuggingFaceTokenizer(folder(tmp_path, content))
    for text in texts():
        assert found.encode(text, add_special_tokens=False) == library.encode(text), text
    for token in range(found.size):
        assert found.is_special(token) == library.is_control(token)


@settings(FUZZ, max_examples=examples(60))
@given(text=st.text(st.sampled_from("a= \u3000\u0301eｅか\u3099ｶﾞ\u1100\u1161\u11a8ﬁ▁🙂\u200d<tol>\n"), max_size=20))
def test_any_text_is_encoded_as_the_library_does(text: str, both: tuple[Any, SentencePieceEncoder]) -> None:
    library, encoder = both
    assert encoder.encode(text) == library.encode(text)


@pytest.mark.parametrize("unused", [False, True])
def test_equal_scores_and_unused_tokens_are_merged_as_the_library_does(unused: bool) -> None:
    """Vocabularies that were extended by hand have many tokens of the score 0."""
    texts = ["▁", "a", "b", "c", "ab", "bc", "abc", "ca", "▁a"]
    kinds = [1] * 6 + [5 if unused else 1, 1, 1]
    rows = [("<unk>", 0.0, 2), *((text, -float(len(text) == 1), kind) for text, kind in zip(texts, kinds, strict=True))]
    pieces = [(1, message([(1, text.encode()), (2, score), (3, kind)])) for text, score, kind in rows]
    content = message([*pieces, (2, message([(3, 2)])), (3, message([(1, b"identity"), (3, 1), (4, 0)]))])
    library = sentencepiece.SentencePieceProcessor(model_proto=content)
    model = read_sentence_piece(content, "m")
    assert needs_encoder(model)
    encoder = SentencePieceEncoder(model, "m")
    for letters in itertools.product("abc ", repeat=5):
        text = "".join(letters)
        assert encoder.encode(text) == library.encode(text), text


def test_tokens_of_characters_that_are_not_tokens_are_merged_as_the_library_does() -> None:
    rows = [("<unk>", 0.0, 2), ("▁", -1.0, 1), ("a", -2.0, 1), ("中文", -3.0, 1), ("ax", -4.0, 1)]
    pieces = [(1, message([(1, text.encode()), (2, score), (3, kind)])) for text, score, kind in rows]
    content = message([*pieces, (2, message([(3, 2)])), (3, message([(1, b"identity"), (3, 1), (4, 0)]))])
    library, model = sentencepiece.SentencePieceProcessor(model_proto=content), read_sentence_piece(content, "m")
    assert needs_encoder(model)
    encoder = SentencePieceEncoder(model, "m")
    for letters in itertools.product("中文ax", repeat=4):
        assert encoder.encode("".join(letters)) == library.encode("".join(letters)), letters


def test_special_and_added_tokens_are_found_before_the_text_between_them_is_rewritten(tmp_path: Path) -> None:
    content = trained("unigram", "nmt_nfkc", True, True)
    library = sentencepiece.SentencePieceProcessor(model_proto=content)
    size = library.vocab_size()
    found = HuggingFaceTokenizer(
        folder(
            tmp_path,
            content,
            added_tokens={"<more>": size},
            special_tokens_map={"additional_special_tokens": ["<more>"], "eos_token": "</s>"},
            tokenizer_config={"tokenizer_class": "T5Tokenizer"},
        )
    )
    between = [*library.encode("the fox "), size, *library.encode(" dog"), library.eos_id()]
    assert found.encode("the fox <more> dog</s>", add_special_tokens=True) == between
    assert found.is_special(size) and library.eos_id() in found.end_tokens
    assert library.eos_id() not in found.encode("＜/s＞", add_special_tokens=False)
    assert found.encode("a\ud800", add_special_tokens=False) == found.encode("a?", add_special_tokens=False)


def test_a_model_without_a_token_for_what_is_unknown_is_refused() -> None:
    content = message([(1, message([(1, b"a"), (2, -1.0)]))])
    with pytest.raises(CheckpointError, match="no token for what is unknown"):
        SentencePieceEncoder(read_sentence_piece(content, "m"), "m")


def test_tokens_that_are_too_long_are_refused() -> None:
    pieces = [message([(1, b"<unk>"), (3, 2)]), message([(1, b"a" * 600), (2, -1.0)])]
    with pytest.raises(CheckpointError, match="longer tokens"):
        SentencePieceEncoder(read_sentence_piece(message([(1, piece) for piece in pieces]), "m"), "m")


MAP_OF_NFKC = trained("unigram", "nmt_nfkc", False, True).split(b"nmt_nfkc", 1)[1]
MODEL = model_bytes({**BPE, 3: 1}, {**PLAIN, 2: MAP_OF_NFKC[4:4000], 4: 1})


def read_and_encode(content: bytes) -> None:
    try:
        model = read_sentence_piece(content, "m")
        encoder = SentencePieceEncoder(model, "m")
    except CheckpointError:
        return
    for text in ("ab ba", "ｅ\u0301 ①"):
        assert all(token < len(model.tokens) for token in encoder.encode(text))


def test_chosen_tokens_of_several_spaces_are_found_by_the_tokenizers_library(tmp_path: Path) -> None:
    """Gemma's vocabulary has them."""
    symbols = ["▁▁", "▁▁▁", "\n\n"]
    content = trained("bpe", "identity", False, False, byte_fallback=True, user_defined_symbols=symbols)
    library = sentencepiece.SentencePieceProcessor(model_proto=content)
    found = HuggingFaceTokenizer(folder(tmp_path, content))
    assert not needs_encoder(read_sentence_piece(content, "m"))
    for text in [*(line for line in LINES if "▁" not in line), "    ", "def f():\n\n   x  y"]:
        assert found.encode(text, add_special_tokens=False) == library.encode(text), text
    assert found.token_bytes(library.piece_to_id("▁▁")) == b"  "


@FUZZ
@given(st.dictionaries(st.integers(0, len(MODEL) - 1), st.integers(0, 255), max_size=8), st.integers(0, len(MODEL)))
def test_a_damaged_file_is_read_or_refused(changes: dict[int, int], end: int) -> None:
    read_and_encode(with_bytes(MODEL, changes)[:end])


@settings(FUZZ, max_examples=examples(100))
@given(
    units=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300),
    texts=st.binary(min_size=1),
    text=st.text(UNICODE),
)
def test_a_map_of_random_units_never_crashes(units: list[int], texts: bytes, text: str) -> None:
    content = struct.pack(f"<I{len(units)}I", 4 * len(units), *units) + texts
    Normalizer(Rules(CharacterMap(content), drops_spaces=True)).normalized(text)


def test_sums_of_long_texts_are_rounded_as_the_library_does() -> None:
    content = trained("unigram", "identity", True, True)
    library = sentencepiece.SentencePieceProcessor(model_proto=content)
    text = "".join(LINES[:4]) * 300
    assert SentencePieceEncoder(read_sentence_piece(content, "m"), "m").encode(text) == library.encode(text)


@pytest.mark.parametrize(
    "work",
    [
        lambda: Unigram({"a": (0, -1.0)}, {}).cuts("a" * 1000),
        lambda: BytePairs({"a": (0, -1.0)}, {}, {}).cuts("a" * 1000),
        lambda: around({"<s>": 0}, lambda text: [])("<s>" * 1000),
        lambda: Normalizer(Rules(drops_spaces=True)).normalized("a " * 1000),
    ],
    ids=["unigram", "merging", "literals", "normalizer"],
)
def test_a_long_text_is_given_up_when_nobody_waits_for_its_tokens(work: Callable[[], object]) -> None:
    begun, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    def encode() -> None:
        begun.set()
        assert cancelled.wait(PATIENCE_SECONDS)
        try:
            work()
        except Abandoned:
            ended.set()

    async def run() -> None:
        task = asyncio.create_task(inline_or_on_thread(MAX_INLINE_SIZE + 1, encode))
        await until(begun.is_set)
        task.cancel()
        await asyncio.wait([task])
        cancelled.set()
        await until(ended.is_set)

    asyncio.run(run())
