"""The tokens of a GGUF file are llama.cpp's, and so is what it leaves open: start token, end tokens, rules.

Sources: `llama_vocab::impl::load`, `llm_tokenizer_bpe` and `tokenizer_st_partition` in llama.cpp's src/llama-vocab.cpp
(llama_cpp_python 0.3.36). The slow test asks a llama-server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from onward.checkpoints.parameters import Parameters
from onward.checkpoints.pretokenizers import PRE_TOKENIZERS
from onward.checkpoints.tokenizer import NEEDS_ENCODER, tokenizer_files
from tests.checkpoints.hugging_face import write_folder
from tests.engines.upstreams.byte_model import llama_server
from tests.examples import slow_but
from tests.models.doors import client, refusal, shown, token_ids, tokens
from tests.models.tokenizer_files import (
    BYTES,
    CONTROL,
    END,
    MERGES,
    NORMAL,
    SPACE,
    START,
    UNUSED,
    USER_DEFINED,
    byte_level,
    merged_lines,
    model_with,
    sentence_piece,
)
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path / "cache"))


def id_of(tokenizer: dict[str, Any], text: str) -> int:
    found: int = tokenizer["tokenizer.ggml.tokens"].index(text)
    return found


ADDS_START = {
    "llama-bpe": True, "llama3": True, "llama-v3": True, "falcon3": True, "falcon-h1": True, "pixtral": True,
    "midm-2.0": True, "lfm2": True, "tekken": True,
    **dict.fromkeys(
        ("qwen2", "gpt-2", "smollm", "default", "dbrx", "smaug-bpe", "gpt-4o", "llama4", "olmo", "glm4", "seed-coder",
         "qwen35"),
        False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", ADDS_START)
def test_the_rule_says_whether_a_text_has_a_start_token(rule: str, tmp_path: Path) -> None:
    made = byte_level(pre=rule)
    found = token_ids(model_with(tmp_path, made), "the", special=True)
    assert found == [id_of(made, START)] * ADDS_START[rule] + [id_of(made, "the")]


@pytest.mark.parametrize(("rule", "stated"), [("llama-bpe", False), ("qwen2", True)])
def test_the_file_may_say_otherwise(rule: str, stated: bool, tmp_path: Path) -> None:
    found = token_ids(model_with(tmp_path, byte_level(pre=rule, add_bos_token=stated)), "the", special=True)
    assert len(found) == 1 + stated


IGNORES_MERGES = {
    "llama-bpe": True,
    "tekken": True,
    "dbrx": False,
    "smaug-bpe": False,
    "gpt-4o": False,
    "llama4": False,
}


@pytest.mark.parametrize("rule", IGNORES_MERGES)
def test_a_piece_that_is_a_token_is_taken_whole_by_some_rules(rule: str, tmp_path: Path) -> None:
    made = byte_level([("abc", NORMAL)], pre=rule)
    found = token_ids(model_with(tmp_path, made), "abc")
    assert found == ([id_of(made, "abc")] if IGNORES_MERGES[rule] else [97, 98, 99])


@pytest.mark.parametrize("rule", [None, "", "default"])
def test_without_a_rule_digits_are_split_in_threes_and_punctuation_separately(rule: str | None, tmp_path: Path) -> None:
    made = byte_level(pre=rule)
    path = model_with(tmp_path, made)
    expected = [id_of(made, text) for text in ("123", "4", f"{SPACE}a", "!!")]
    assert token_ids(path, "1234 a!!") == expected
    notes = shown(path)["notes"]
    assert len(notes) == (rule != "default") and all("does not say how it cuts text" in note for note in notes)


def test_falcon_splits_digits_in_threes_and_all_punctuation_separately(tmp_path: Path) -> None:
    made = byte_level(pre="falcon", merges=(*MERGES, f"{SPACE} `", f"{SPACE} 12"))
    expected = [id_of(made, text) for text in ("123", "4", SPACE, "`", f"{SPACE}12")]
    assert token_ids(model_with(tmp_path, made), "1234 ` 12") == expected


@pytest.mark.parametrize("kind", [USER_DEFINED, CONTROL])
@pytest.mark.parametrize("text", ["ilÖveyou", "café", "đem", "č", "¿", "ÜBER", "Ġx", "中文", "  ", "<think>"])
def test_the_bytes_of_a_token_that_was_added_are_its_text(text: str, kind: int, tmp_path: Path) -> None:
    whole = f"a{text}b"
    assert (
        b"".join(part for _, part in tokens(model_with(tmp_path, byte_level([(text, kind)])), whole)) == whole.encode()
    )


TWICE = (("hello", NORMAL), ("hello", NORMAL), ("", NORMAL), ("", UNUSED), ("<|p|>", CONTROL), ("</s>", CONTROL)) * 2


@pytest.mark.parametrize("made", [byte_level([*TWICE, ("the", NORMAL)]), sentence_piece([*TWICE, ("▁he", NORMAL)])])
def test_a_text_with_two_ids_and_a_token_without_text_are_read(made: dict[str, Any], tmp_path: Path) -> None:
    """llama.cpp aborts at the former (GGML_ASSERT); official files of Gemma 4 contain the latter."""
    texts = made["tokenizer.ggml.tokens"]
    with client(model_with(tmp_path, made), tmp_path) as found:
        for token, text in enumerate(texts):
            if texts.count(text) > 1:
                echoed = found.completions.create(prompt=[token], max_tokens=0, echo=True).choices[0].text
                assert echoed == text.replace("▁", " "), token


def test_the_unknown_token_is_recognised_in_a_text(tmp_path: Path) -> None:
    made = sentence_piece()
    texts = ("<unk>", "▁", "▁he", "▁", "<s>", "▁he")
    assert token_ids(model_with(tmp_path, made), "<unk> he <s>he") == [id_of(made, text) for text in texts]


EQUAL = sentence_piece([("ih", NORMAL)], scores=[0.0] * 273)
UNKNOWN_PARTS = sentence_piece([("Ġx", UNUSED), ("中文", NORMAL), ("x!", USER_DEFINED)])

CHOSEN = sentence_piece([("▁▁▁", USER_DEFINED)])


@pytest.mark.parametrize(
    ("made", "text", "expected"),
    [
        (EQUAL, "ihe", ("▁", "ih", "e")),
        (EQUAL, "hihe lo", ("▁hi", "he", "▁", "lo")),
        (UNKNOWN_PARTS, "中文Ġxx!hi", ("▁", "中文", "Ġx", "x!", "▁hi")),
        (CHOSEN, "  lo", ("▁▁▁", "lo")),
        (CHOSEN, " lo▁▁▁", ("▁▁", "lo", "▁▁▁")),
        (UNKNOWN_PARTS, "<s>中x", ("<s>", "▁", "<0xE4>", "<0xB8>", "<0xAD>", "<0x78>")),
    ],
)
def test_the_first_of_equal_scores_is_merged_and_characters_need_not_be_tokens(
    made: dict[str, Any], text: str, expected: tuple[str, ...], tmp_path: Path
) -> None:
    """The merges of other tokenizers cannot express this."""
    assert token_ids(model_with(tmp_path, made), text) == [id_of(made, token) for token in expected]


SCORES = [-1.0 - token for token in range(272)]
RUNS = {
    name: (
        sentence_piece([("=" * length, NORMAL) for length in lengths], scores=SCORES + [0.0] * len(lengths)),
        needs_encoder,
    )
    for name, lengths, needs_encoder in (
        ("alike", (2, 4, 3, 1), False),
        ("by place", (1, 2, 3, 4), True),
        ("as long as any", tuple(1 << power for power in range(7)), False),
        ("too long to try", tuple(1 << power for power in range(8)), True),
    )
}
"""Of one score, of which the list has the first ids first."""


@pytest.mark.parametrize("name", slow_but(["alike", "by place"], RUNS))
def test_runs_of_one_character_need_no_encoder_where_a_list_merges_them_alike(name: str) -> None:
    made, needs_encoder = RUNS[name]
    files = tokenizer_files(Parameters({"general.architecture": "llama", **made}, "m"))
    assert files.configuration[NEEDS_ENCODER] is needs_encoder


PHI = (
    ("<|endoftext|>", CONTROL),
    ("<|user|>", USER_DEFINED),
    ("<|end|>", USER_DEFINED),
    ("<|assistant|>", USER_DEFINED),
)


@pytest.mark.parametrize("name", ["Phi3", "Phi-3-mini-4k-instruct", "microsoft/phi-3.5"])
def test_added_tokens_of_phi_3_absorb_the_white_space_after_them(name: str, tmp_path: Path) -> None:
    made = sentence_piece(PHI)
    text = "<|user|>\nhi<|end|>\n<|assistant|>\n<|endoftext|> <s> hi"
    expected = ["<|user|>", "▁hi", "<|end|>", "<|assistant|>", "<|endoftext|>", "▁▁", "<s>", "▁", "▁hi"]
    plain = token_ids(model_with(tmp_path, made, name="Another"), text)
    found = token_ids(model_with(tmp_path, made, name=name), text)
    assert found == [id_of(made, token) for token in expected]
    assert len(plain) > len(found)


OUT_OF_RANGE = (
    "bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id", "fim_pre_token_id",
    "prefix_token_id",
)  # fmt: skip


@pytest.mark.parametrize("key", OUT_OF_RANGE)
@pytest.mark.parametrize("value", [4294967295, 999_999])
def test_a_special_id_that_is_not_a_token_is_ignored_with_a_note(key: str, value: int, tmp_path: Path) -> None:
    path = model_with(tmp_path, byte_level((), MERGES, **{key: value}))
    [note] = shown(path)["notes"]
    assert f"states {value} as '{key}', which is not a token" in note
    assert token_ids(path, "the") == [id_of(byte_level(), "the")]


def test_a_file_without_a_start_token_that_asks_for_one_is_noted(tmp_path: Path) -> None:
    """llama.cpp would use token 11, a comma in most vocabularies."""
    path = model_with(tmp_path, byte_level(pre="llama-bpe", bos_token_id=None, add_eos_token=True))
    notes = shown(path)["notes"]
    assert ["asks for an end token" in notes[0], "names none" in notes[1], len(notes)] == [True, True, 2]
    assert token_ids(path, "the", special=True) == [id_of(byte_level(), "the")]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no merges": (byte_level(merges=(), more=[("the", NORMAL)]), "has no merges"),
    "an empty list of merges": (byte_level([("the", NORMAL)], ()), "has no merges"),
    "a start token as a number": (byte_level(add_bos_token=1), "true or false is needed"),
    "an end token as a text": (byte_level(eos_token_id="</s>"), "which is not an id"),
    "an unknown rule": (byte_level(pre="martian"), "'martian'"),
    "kinds of other tokens": (byte_level(token_type=[1, 1]), "has 2 entries"),
    "no scores": (sentence_piece(scores=None), "no scores"),
    "suppressed tokens as texts": (byte_level(suppress_tokens=["the"]), "suppress_tokens"),
    "no token that is not suppressed": (byte_level(suppress_tokens=list(range(999))), "suppresses all of its tokens"),
    "another model": (byte_level(model="bert"), "'bert', which Onward cannot build"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tokenizer_that_cannot_be_built_is_refused_by_name(name: str, tmp_path: Path) -> None:
    made, words = REFUSED[name]
    assert words in refusal(model_with(tmp_path, made))


def test_single_bytes_need_no_merges(tmp_path: Path) -> None:
    assert token_ids(model_with(tmp_path, byte_level(merges=())), "the") == [116, 104, 101]


NUM_GENERATED = 12


def generated(model: Path, cache: Path) -> tuple[list[list[int]], list[dict[str, float]]]:
    """The token ids that a model generates, greedily and with two seeds; and the most likely tokens at each position of
    a prompt and after it."""
    fields: dict[str, Any] = {"prompt": [3, 7, 5, 3], "ignore_eos": True, "return_tokens_as_token_ids": True}
    with client(model, cache) as found:
        greedy = found.completions.create(temperature=0, max_tokens=NUM_GENERATED, logprobs=3, **fields).choices
        drawn = found.completions.create(n=2, seed=1, max_tokens=NUM_GENERATED, logprobs=0, **fields).choices
        scored = found.completions.create(max_tokens=1, echo=True, logprobs=3, **fields).choices[0].logprobs
    parts = [choice.logprobs for choice in (*greedy, *drawn)]
    ids = [[int(name.removeprefix("token_id:")) for name in part.tokens] for part in parts if part is not None]
    assert scored is not None and scored.top_logprobs is not None and parts[0] is not None and parts[0].top_logprobs
    places = [*scored.top_logprobs[1:4], parts[0].top_logprobs[0]]
    own = {f"token_id:{ids[0][0]}": parts[0].token_logprobs[0]}
    return ids, [each for each in places if each is not None] + [own]


def in_folder(folder: Path, suppressed: list[int]) -> Path:
    write_folder(folder, "llama")
    (folder / "generation_config.json").write_text(json.dumps({"suppress_tokens": suppressed}), encoding="utf-8")
    return folder


def in_file(folder: Path, suppressed: list[int]) -> Path:
    folder.mkdir()
    return model_with(folder, byte_level(suppress_tokens=[*suppressed, 99_999]))


@pytest.mark.parametrize("write", [in_file, in_folder])
def test_suppressed_tokens_are_never_generated_and_change_no_log_probability(
    write: Callable[[Path, list[int]], Path], tmp_path: Path
) -> None:
    (greedy, *_), usual = generated(write(tmp_path / "usual", []), tmp_path)
    suppressed = sorted({*greedy})
    texts, likely = generated(write(tmp_path / "suppressed", suppressed), tmp_path)
    assert len(texts) == 3 and not {*suppressed} & {token for text in texts for token in text}
    assert likely[:3] == usual[:3]
    assert usual[3].items() <= likely[3].items(), "they are listed, though not generated"
    assert likely[3].items() >= likely[4].items()


ENDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("<|endoftext|>", "<|im_start|>", "<|im_end|>"): ("<|endoftext|>", "<|im_end|>"),
    ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"): (
        "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>",
    ),
    ("<bos>", "<eos>", "<end_of_turn>"): ("<eos>", "<end_of_turn>"),
    ("<|fim_prefix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"): (
        "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    ),
    ("<|return|>", "<|call|>", "<|end|>"): ("<|return|>", "<|call|>"),
    ("<|tool_response>", "</s>"): ("<|tool_response>",),
    ("<|plain|>",): (),
}  # fmt: skip
"""Control tokens of a file that names another end token, and which of them end a completion (`special_eog_ids`)."""


@pytest.mark.parametrize("texts", ENDS)
def test_tokens_that_end_a_completion_are_known_by_their_text(texts: tuple[str, ...], tmp_path: Path) -> None:
    made = byte_level([(text, CONTROL) for text in texts])
    with client(model_with(tmp_path, made), tmp_path) as found:
        for text in (*texts, END):
            wanted = {str(id_of(made, text)): 100.0}
            answer = found.completions.create(prompt="the", max_tokens=2, logit_bias=wanted, temperature=0)
            is_end = answer.choices[0].finish_reason == "stop"
            assert is_end == (text == END or text in ENDS[texts]), text


TEXTS = (
    "the hen", "1234 a!!", "I'm HERE, isn't  it?\n\n  x", "a\tb\r\nc 12,345.67", "Größe naïve Üb é",
    "你好，世界 日本", "👍🏽 a", "  leading", "x = y ** 2 // z; a!=b && c", f"{START}the{END} and", "$5 <b>=^~|`",
)  # fmt: skip
ORACLE: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    **{rule: (byte_level(pre=rule), TEXTS, "m") for rule in PRE_TOKENIZERS if rule != "storyteller"},  # Onward's own
    "no rule": (byte_level(pre=None), TEXTS, "m"),
    "added": (
        byte_level([("ilÖveyou", USER_DEFINED), ("café", USER_DEFINED), ("Ġx", USER_DEFINED)]),
        ("ailÖveyoub café", "a Ġx x"),
        "m",
    ),
    "lines": (
        merged_lines(),
        (
            "hello  hello",
            " he\nhell o\n\nhe",
            "a é <|turn>he <bos>\n",
            "\n\n\n",
            "e\n\n\no",
            "▁he \r\n▁ h",
            "",
        ),
        "m",
    ),
    "lines, no start": (merged_lines(add_bos_token=False), ("hello",), "m"),
    "SentencePiece": (sentence_piece(), ("hi hello", "<unk> he <s>he</s>  hi", "", "  hi"), "m"),
    "no space before": (sentence_piece(add_space_prefix=False, add_bos_token=False), ("hi hello", "<unk> he"), "m"),
    "unused": (sentence_piece([("hel", UNUSED), ("hell", UNUSED)]), ("hello hel hell",), "m"),
    "chosen spaces": (CHOSEN, ("  he", " he▁▁▁", "he    he", "      "), "m"),
    "equal scores": (EQUAL, ("ihe", "hihe lo", "hi hello ihihe", "llolo  hi"), "m"),
    **{
        f"runs {name}": (made, ("hi" + "=" * 7 + "hi", *("=" * count for count in range(1, 12))), "m")
        for name, (made, _) in RUNS.items()
    },
    "characters that are no tokens": (UNKNOWN_PARTS, ("中文Ġxx!hi", "<s>中x", "中 文 Ġ x"), "m"),
    "Phi 3": (
        sentence_piece(PHI),
        ("<|user|>\nhi<|end|>\n<|assistant|>\n<|endoftext|> <s> hi", "</s> hi <s>  hi<unk> \n he"),
        "Phi-3",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ORACLE)
def test_llama_server_makes_the_same_tokens(name: str, tmp_path: Path) -> None:
    made, texts, general = ORACLE[name]
    path = model_with(tmp_path, made, name=general)
    with llama_server(path, "-c", "256", "-np", "1", "--no-warmup") as url:
        for text in texts:
            for special in (False, True):
                asked = {"content": text, "add_special": special, "parse_special": True}
                answer = httpx2.post(f"{url}/tokenize", json=asked, timeout=PATIENCE_SECONDS).json()
                assert token_ids(path, text, special=special) == answer["tokens"], text


@pytest.mark.slow
def test_llama_server_generates_the_same_tokens_without_those_that_are_suppressed(tmp_path: Path) -> None:
    (greedy, *_), _ = generated(in_file(tmp_path / "usual", []), tmp_path)
    path = in_file(tmp_path / "suppressed", sorted({*greedy}))
    (expected, *_), likely = generated(path, tmp_path)
    with llama_server(path, "-c", "256", "-np", "1", "--no-warmup", "-ctk", "f32", "-ctv", "f32") as url:
        asked = {"prompt": [3, 7, 5, 3], "n_predict": NUM_GENERATED, "temperature": 0, "n_probs": 3, "ignore_eos": True}
        answer = httpx2.post(f"{url}/completion", json=asked, timeout=PATIENCE_SECONDS).json()
    places = answer["completion_probabilities"]
    assert [place["id"] for place in places] == expected
    theirs = {f"token_id:{each['id']}" for each in places[0]["top_logprobs"]}
    assert theirs <= likely[3].keys(), "raw log-probabilities, with tokens that are suppressed"


def test_the_vocabulary_can_encode_any_text() -> None:
    assert len(set(BYTES)) == 256 and np.all([line.count(" ") == 1 for line in MERGES])
