"""Random tokenizers of GGUF files: a text has the same tokens as in llama-server, or the file is refused by name."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path
from typing import Any

import httpx2
import pytest

from onward.checkpoints.pretokenizers import PRE_TOKENIZERS
from tests.engines.upstreams.byte_model import llama_server
from tests.examples import examples
from tests.models.doors import command, token_ids
from tests.models.tokenizer_files import (
    CONTROL,
    END,
    NORMAL,
    START,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    byte_level,
    model_with,
    sentence_piece,
)

pytestmark = pytest.mark.slow

NUM_FILES, NUM_TEXTS, MAX_PARTS = examples(100), 12, 6
ADDED = (
    "<|user|>", "<|x", "x|>", "hen", "the", "é", "Ãß", "中文", "😀", " a", "  ", "\n", "\t\t", "▁he", "▁▁▁", "Ġx",
    "<|im_end|>", "<|eot_id|>", "<|end|>", "<|return|>", "<|call|>", "<fim_prefix>", "<|fim_pad|>", "[INST]", "a!",
    "<b>", "<0x41>", "</s >", "123456", "’", "==", "====", "=",
)  # fmt: skip
"""Texts of tokens that are added: some mean something, some begin or contain others."""
KINDS = (NORMAL, NORMAL, UNKNOWN, CONTROL, CONTROL, USER_DEFINED, USER_DEFINED, UNUSED)
PARTS = (
    *ADDED, START, END, "<s>", "</s>", "<unk>", " ", " ", "  ", "\n", "\r\n", "\t", "the", "he", "hi hello", "I'm",
    "12", "1234567", "!!", "ab", "é", "日本", "👍🏽", "x=1;", "=====", "\u00a0", "\u3000", "a\u0301", "'LL", "  hen",
)  # fmt: skip
SWITCHES = ("add_bos_token", "add_space_prefix", "remove_extra_whitespaces", "add_sep_token", "add_eos_token")
IDS = (
    "bos_token_id", "eos_token_id", "eot_token_id", "unknown_token_id", "padding_token_id", "fim_pre_token_id",
    "prefix_token_id", "seperator_token_id",
)  # fmt: skip


def tokenizer(draw: random.Random) -> tuple[dict[str, Any], str]:
    """Metadata of a tokenizer, and the name of its model."""
    is_byte_level = draw.random() < 0.5
    taken = (byte_level if is_byte_level else sentence_piece)()["tokenizer.ggml.tokens"]  # none has two ids there
    more = [(text, draw.choice(KINDS)) for text in draw.sample(ADDED, draw.randrange(6)) if text not in taken]
    stated: dict[str, Any] = {name: draw.random() < 0.5 for name in draw.sample(SWITCHES, draw.randrange(3))}
    stated |= {name: draw.choice([0, 1, 2, 65, 260, 4294967295]) for name in draw.sample(IDS, draw.randrange(2))}
    name = draw.choice(["m", "m", "Phi-3", "my phi3 mini", "Llama"])
    if not is_byte_level:
        made = sentence_piece(more, **stated)
        if draw.random() < 0.4:
            equal = draw.choice([1, 3])
            made["tokenizer.ggml.scores"] = [-float(token // equal % 7) for token in range(len(taken) + len(more))]
        return made, name
    rules = sorted(PRE_TOKENIZERS.keys() - {"storyteller", "kimi-k2"})  # Onward's own, and one that is cut otherwise
    return byte_level(more, pre=draw.choice([*rules, None, "default"]), **stated), name


def texts(draw: random.Random) -> list[str]:
    return ["".join(draw.choices(PARTS, k=draw.randrange(1, MAX_PARTS))) for _ in range(NUM_TEXTS)]


def of_llama(path: Path, asked: list[tuple[str, bool]]) -> list[list[int]]:
    """The tokens of texts by llama-server, with or without those that are added to each text; none where it refuses
    the file."""
    found = []
    try:
        with llama_server(path, "-c", "256", "-np", "1", "--no-warmup") as url:
            for text, special in asked:
                body = {"content": text, "add_special": special, "parse_special": True}
                found.append(httpx2.post(f"{url}/tokenize", json=body, timeout=60).json()["tokens"])
    except (AssertionError, httpx2.HTTPError, subprocess.SubprocessError):
        return []
    return found


def test_a_text_has_the_tokens_of_llama_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path / "cache"))
    wrong, num_compared = [], 0
    for number in range(NUM_FILES):
        draw = random.Random(number)
        made, name = tokenizer(draw)
        path = model_with(tmp_path, made, name=name)
        code, _, said = command("models", "show", str(path))
        if code:
            assert str(path) in said.replace("\n", "") and "Traceback" not in said
            continue
        asked = [(text, special) for text in texts(draw) for special in (False, True)]
        for (text, special), right in zip(asked, of_llama(path, asked), strict=False):
            if special and made.get("tokenizer.ggml.add_eos_token"):
                right = right[:-1]  # noted, but not applied: a completion continues its prompt
            if (here := token_ids(path, text, special=special)) != right:
                wrong.append(f"{number} {special=} {text!r}: {here} instead of {right}")
            num_compared += 1
    assert wrong == [] and num_compared > NUM_FILES
