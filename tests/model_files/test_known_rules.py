"""Rules that published models have are known, and take a time that grows as a text does, whatever the text is; those
that could take any time are not known."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from onward.checkpoints.pretokenizers import PRE_TOKENIZERS
from onward.ipc.worker_end import limited_processor_time
from onward.model_files.known_rules import are_known

Rules = dict[str, Any]


def split(expression: str) -> Rules:
    return {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}


def sequence(*steps: Rules, part: str = "pretokenizers") -> Rules:
    return {"type": "Sequence", part: list(steps)}


def byte_level(**given: bool) -> Rules:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **given}


def replace(pattern: Rules, content: str) -> Rules:
    return {"type": "Replace", "pattern": pattern, "content": content}


SPACES = replace({"String": " "}, "▁")
DIGITS = {"type": "Digits", "individual_digits": True}
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PUBLISHED: dict[str, tuple[Rules | None, Rules | None]] = {
    "GPT-2": (None, byte_level(use_regex=True)),
    "Llama 2": (sequence({"type": "Prepend", "prepend": "▁"}, SPACES, part="normalizers"), None),
    "Llama 3": (None, sequence(split(LLAMA3), byte_level())),
    "Mistral": (None, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False}),
    "Qwen 2.5": ({"type": "NFC"}, sequence(split(LLAMA3.replace("{1,3}", "")), byte_level())),
    "Gemma 3": (
        SPACES,
        {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
    ),
    "gpt-oss": (None, sequence(split(GPT4O), byte_level())),
    "SmolLM2": (None, sequence(DIGITS, byte_level(use_regex=True))),
    "DeepSeek-V3": (
        sequence(part="normalizers"),
        sequence(*map(split, PRE_TOKENIZERS["deepseek-v3"].patterns), byte_level()),
    ),
    "none": (None, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_rules_of_published_models_are_known(name: str) -> None:
    assert are_known(*PUBLISHED[name])


STRANGE: dict[str, tuple[Rules | None, Rules | None]] = {
    "an expression that backtracks": (None, split(r"(x+x+)+y")),
    "one that looks ahead again and again": (None, split(r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))")),
    "one among others": (None, sequence(split(LLAMA3), sequence(split("a*b")), byte_level())),
    "one that replaces": (replace({"Regex": "a*b"}, ""), None),
    "two patterns": (None, {"type": "Split", "pattern": {"Regex": LLAMA3, "String": "a"}, "behavior": "Isolated"}),
    "a long literal": (replace({"String": "a" * 17}, ""), None),
    "a text that grows": (sequence(*[replace({"String": "a"}, "aa")] * 10, part="normalizers"), None),
    "what is put between all letters": (replace({"String": ""}, "a"), None),
    "a long beginning": ({"type": "Prepend", "prepend": "a" * 17}, None),
    "bytes that become letters again and again": ({"type": "ByteLevel"}, sequence(*[byte_level()] * 8)),
    "a table of replacements": ({"type": "Precompiled", "precompiled_charsmap": "AAAA"}, None),
    "many steps": (None, sequence(*[DIGITS] * 17)),
    "a kind of the future": (None, {"type": "Quantum"}),
}


@pytest.mark.parametrize("name", STRANGE)
def test_rules_that_could_take_any_time_are_not_known(name: str) -> None:
    assert not are_known(*STRANGE[name])


KINDS = (" ", "\n", "\t", "a", "A", "é", "1", "一", "!", "'", "☃", "\u0301", "가", "ก", "\u3000", "_", "ʰ")
"""A character of each kind that an expression may tell from others."""
ENDS = (" ", "\n", "a", "1", "!", "☃")
NUM_CHARACTERS = 20_000
PROCESSOR_SECONDS = 1.0
"""A text takes some 20 ms; where the time grows with the square, three seconds."""
EXPRESSIONS = sorted({pattern for rule in PRE_TOKENIZERS.values() for pattern in rule.patterns})


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="processor time is not limited there")
@pytest.mark.parametrize("expression", EXPRESSIONS, ids=range(len(EXPRESSIONS)))
def test_the_time_of_an_expression_grows_as_the_text_does(expression: str) -> None:
    """A process whose time is over ends. Others that are known differ from these in how they write contractions."""
    cut = pre_tokenizers.Split(Regex(expression), "isolated")
    for run, end in itertools.product(KINDS, ENDS):
        with limited_processor_time(PROCESSOR_SECONDS):
            cut.pre_tokenize_str(run * NUM_CHARACTERS + end)
