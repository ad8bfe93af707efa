"""A tokenizer whose rules are strangers' gives the tokens that the library gives, or refuses a text, in processes that
may die; what one text takes holds up no other client."""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from onward.errors import ModelFolderError, TextNotEncodable
from onward.model_files.tokenizer import HuggingFaceTokenizer
from onward.model_files.tokenizer_process import TokenizerProcess
from onward.offload import owner
from tests.model_files.tiny_tokenizers import END, START, byte_level, save
from tests.waiting import PATIENCE_SECONDS, wait_for

CUBIC = r"a*a*(?<!a)b"
"""It looks for a b in vain from each letter on, and in each case tries all ways to cut the letters in two."""
ENDLESS = "a" * 4000 + "b"


def strange(expression: str = CUBIC) -> Tokenizer:
    """A tokenizer with a rule that no published one has."""
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(expression), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", pair=f"{START} $A $B", special_tokens=[(START, tokenizer.token_to_id(START))]
    )
    return tokenizer


@pytest.fixture(scope="module")
def library() -> Tokenizer:
    return strange()


@pytest.fixture(scope="module")
def loaded(library: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(save(library, tmp_path_factory.mktemp("strange")))


def encode(tokenizer: HuggingFaceTokenizer, text: str, client: str = "") -> list[int]:
    owner.set(client)
    return tokenizer.encode(text, add_special_tokens=False)


def test_tokens_are_those_of_the_library(loaded: HuggingFaceTokenizer, library: Tokenizer) -> None:
    assert loaded.has_process
    for text in ("", "the cat sat on the mat", "naïve ab aab\n", f"a{END}b", "é è", "aaab" * 3000):
        for with_special in (False, True):
            found = loaded.encode(text, add_special_tokens=with_special)
            assert found == library.encode(text, add_special_tokens=with_special).ids
    assert loaded.implicit_prefix(add_special_tokens=True) == 1
    assert encode(loaded, "a\ud800b") == encode(loaded, "a?b")


@pytest.mark.skipif(sys.platform == "win32", reason="processor time is not limited there")
def test_a_text_that_takes_too_long_is_refused_and_the_next_one_is_not(loaded: HuggingFaceTokenizer) -> None:
    tokens = encode(loaded, "the cat")
    with pytest.raises(TextNotEncodable, match="takes too long"):
        encode(loaded, ENDLESS)
    assert encode(loaded, "the cat") == tokens


@pytest.fixture
def process(library: Tokenizer) -> TokenizerProcess:
    return TokenizerProcess(library.to_str().encode())


def pid_of(process: TokenizerProcess) -> int:
    [idle] = process._idle
    assert idle.process.pid is not None
    return idle.process.pid


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGSTOP")
@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_a_text_that_is_being_encoded_holds_up_nobody_else(process: TokenizerProcess, end: int) -> None:
    """One whose process is killed from outside is tried again."""
    tokens = process.encode("the cat")
    first = pid_of(process)
    os.kill(first, signal.SIGSTOP)

    def ask(client: str) -> list[int]:
        owner.set(client)
        return process.encode("the cat")

    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(ask, "a")
        wait_for(lambda: not process._idle, "its process has the text")
        assert threads.submit(ask, "b").result(PATIENCE_SECONDS) == tokens
        assert not held.done()
        os.kill(first, end)
        assert held.result(PATIENCE_SECONDS) == tokens


class _TakenInBetween(list[Any]):
    """Idle processes, the last of which another thread takes as soon as this one has seen that there is one."""

    def __bool__(self) -> bool:
        return True


def test_two_texts_at_once_may_find_one_idle_process(process: TokenizerProcess) -> None:
    process._idle = _TakenInBetween()
    assert process.encode("the cat") == process.encode("the cat") != []
    [idle] = process._idle
    idle.process.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processes are looked for by signals")
def test_a_process_ends_with_its_tokenizer(process: TokenizerProcess) -> None:
    process.encode("the cat")
    child = pid_of(process)
    os.kill(child, 0)
    process._end()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.slow
def test_a_model_other_than_bpe_is_encoded_there(tmp_path: Path) -> None:
    """How long it takes depends on its longest token."""
    pieces = [("<unk>", 0.0), ("▁", -1.0), ("a", -2.0), ("aa", -2.5), ("a" * 500, -1.0)]
    unigram = Tokenizer(models.Unigram(pieces, unk_id=0))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    unigram.decoder = decoders.Metaspace()
    found = HuggingFaceTokenizer(save(unigram, tmp_path))
    assert found.has_process
    for text in ("aaa", "a" * 1001, "b a"):
        assert encode(found, text) == unigram.encode(text, add_special_tokens=False).ids


@pytest.mark.slow
@pytest.mark.parametrize("rule", [{"type": "Quantum"}, {"type": "Precompiled", "precompiled_charsmap": "AAAA"}])
def test_rules_that_the_library_cannot_read_are_a_broken_folder(rule: object, tmp_path: Path) -> None:
    whole = json.loads(byte_level().to_str())
    (tmp_path / "tokenizer.json").write_text(json.dumps(whole | {"normalizer": rule}), encoding="utf-8")
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json cannot be used"):
        HuggingFaceTokenizer(tmp_path)


def test_of_two_rules_of_one_name_the_library_has_the_one_that_was_looked_at(tmp_path: Path) -> None:
    whole = strange().to_str()
    (tmp_path / "tokenizer.json").write_text(whole[:-1] + ', "pre_tokenizer": null}', encoding="utf-8")
    found = HuggingFaceTokenizer(tmp_path)
    assert not found.has_process
    assert found._library.pre_tokenizer is None
