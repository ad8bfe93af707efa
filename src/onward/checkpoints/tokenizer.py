"""The tokenizer of a GGUF file as the files that Hugging Face's library reads: tokenizer.json and its configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, NamedTuple

import msgspec

from onward.checkpoints.cursor import Strings
from onward.checkpoints.parameters import Parameters
from onward.checkpoints.pretokenizers import DEFAULT, PRE_TOKENIZERS, PreTokenizer
from onward.checkpoints.sentencepiece_encoder import BytePairs, Merging, around
from onward.checkpoints.types import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from onward.checkpoints.vocabulary import BYTE_LEVEL, INFILL, MERGED_LINES, SENTENCE_PIECE, VocabularyLists
from onward.errors import CheckpointError

_USABLE = frozenset({NORMAL, USER_DEFINED, UNUSED})
MAX_SPLIT_CHARACTERS = 512
"""Longer tokens are not split into pairs: no known vocabulary has one, and the work grows with the square."""
MAX_RUN_CHARACTERS = 64
"""Of runs of equal scores, the longest of each character, all together. How longer ones are merged is not tried: the
work grows with the cube. Those of Llama have 16, of Gemma 31. Of tokens of line breaks, too."""

MERGES = "tokenizer.ggml.merges"
_SPACE = "▁"
_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")
"""Tokens of Phi 3 that do not absorb the white space after them."""
INFILL_TOKENS = "onward_infill_tokens"
"""In tokenizer_config.json, of files that are made here: see `engine.model.Tokenizer.infill_tokens`."""
NEEDS_ENCODER = "onward_needs_encoder"
"""In the same file: whether a list of merges does not do what llama.cpp does. Then the files have the vocabulary only,
and `sentence_piece_encoder` makes tokens of texts."""
TOKENS = "onward_tokens"
"""In the same file: what tokens stand for whose text is another's, or is not written as the others': an id, whose bytes
they have, or a text."""
SPECIAL_IDS = "onward_special_tokens"
"""In the same file: those of them that are special."""

_SENTENCE_PIECE_DECODER: dict[str, Any] = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ],
}


class Merges(NamedTuple):
    """Pairs of tokens that make a third one, in the order in which BPE merges them. `are_all`: whether it then merges
    as SentencePiece does."""

    pairs: list[list[str]]
    are_all: bool


def merges_of_scores(tokens: list[Any], kinds: list[Any], scores: list[Any]) -> Merges:
    """Return all pairs of tokens that make a third one, those of higher scores first.

    SentencePiece merges, of all neighbours whose union is a token, the pair whose union has the highest score, the
    first one in the text of equals. BPE merges the pair that comes first in its list: the same, if the list is sorted
    by the union's score, no two scores are equal, and every character of a token is a token. Pairs of one union are
    sorted by their ids. Tokens that the makers chose are found in a text before its spaces become ▁, so those with a ▁
    are merged.
    """
    usable = {text: token for token, (text, kind) in enumerate(zip(tokens, kinds, strict=True)) if kind in _USABLE}
    found: list[tuple[float, int, int, str, str]] = []
    are_all = True
    for text, token in usable.items():
        is_found_before = kinds[token] == USER_DEFINED and _SPACE not in text
        if not 1 < len(text) <= MAX_SPLIT_CHARACTERS or is_found_before:
            continue
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            has_left, has_right = left in usable, right in usable
            if has_left and has_right:
                found.append((-scores[token], usable[left], usable[right], left, right))
            elif (has_left or cut == 1) and (has_right or cut == len(text) - 1):
                are_all = False
    found.sort(key=lambda pair: pair[:3])
    pairs = [[left, right] for *_, left, right in found]
    by_score = ((one[0] == other[0], one[3] + one[4], other[3] + other[4]) for one, other in pairwise(found))
    equal = {text for is_equal, *both in by_score if is_equal and both[0] != both[1] for text in both}
    runs = {text[0]: text for text in sorted(equal, key=len)}
    are_runs = all(len(set(text)) == 1 for text in equal) and sum(map(len, runs.values())) <= MAX_RUN_CHARACTERS
    if not are_all or not are_runs:
        return Merges(pairs, are_all=False)
    ranked: dict[str, list[tuple[int, str, str]]] = {character: [] for character in runs}
    for rank, (left, right) in enumerate(pairs):
        for character in runs.keys() & {left[0], right[0]}:
            ranked[character].append((rank, left, right))
    are_alike = all(_merges_alike(longest, ranked[first], usable, scores) for first, longest in runs.items())
    return Merges(pairs, are_alike)


def _merges_alike(longest: str, ranked: list[tuple[int, str, str]], usable: dict[str, int], scores: list[Any]) -> bool:
    """Return whether runs of a character, of which tokens have equal scores, as Llama's runs of spaces do, are merged
    alike in the order of the list and by their place, and with no other character. `ranked`: the pairs of which one
    begins with it, and their places in the list."""
    character = {longest[0]}
    ranks: dict[tuple[str, str], int] = {}
    for rank, left, right in ranked:
        is_left, is_right = set(left) == character, set(right) == character
        if is_left and is_right:
            ranks[left, right] = rank
        elif (is_left and len(left) > 1) or (is_right and len(right) > 1):
            return False
    tokens = {text: (token, scores[token]) for text, token in usable.items() if set(text) == character}
    by_place = BytePairs(tokens, {}, {})
    return all(
        [part for _, part in by_place.cuts(longest[0] * count)] == _merged_by_rank([longest[0]] * count, ranks)
        for count in range(2, 4 * len(longest))
    )


def _merged_by_rank(parts: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Return what is left of parts when the pairs of the lowest rank are merged first."""
    while found := [(ranks[pair], place) for place, pair in enumerate(pairwise(parts)) if pair in ranks]:
        _, place = min(found)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The contents of tokenizer.json, tokenizer_config.json and generation_config.json."""

    tokenizer: bytes
    configuration: dict[str, Any]
    generation: dict[str, Any]


def tokenizer_files(parameters: Parameters, *, has_model: bool = True, is_gguf: bool = True) -> TokenizerFiles:
    """Return the tokenizer that a file's metadata describe. `has_model`: whether it turns texts into tokens; else it
    has the vocabulary only. `is_gguf`: what a GGUF file leaves open is as in llama.cpp; a folder's own files say it.
    Raises CheckpointError for one that cannot be built.
    """
    vocabulary = VocabularyLists(parameters, is_gguf=is_gguf)
    generation = {"eos_token_id": vocabulary.end_tokens(), "suppress_tokens": vocabulary.suppressed_tokens()}
    needs_encoder = False
    if vocabulary.model == BYTE_LEVEL:
        pipeline = _byte_level(vocabulary)
    elif vocabulary.model == MERGED_LINES:
        pipeline = _merged_lines(vocabulary)
    elif not has_model:
        pipeline = _words(vocabulary)
    else:
        merges = merges_of_scores(vocabulary.tokens, vocabulary.kinds, vocabulary.scores())
        needs_encoder = is_gguf and not merges.are_all
        pipeline = (
            _words(vocabulary)
            if needs_encoder
            else _sentence_piece(vocabulary, merges.pairs, has_space_before=vocabulary.flag("add_space_prefix", True))
        )
    bos = vocabulary.special("bos_token_id")
    adds_bos = adds_start(vocabulary) and bos is not None
    ends = generation["eos_token_id"]
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        **pipeline,
        "post_processor": _post_processor(vocabulary.tokens[bos], bos) if adds_bos and bos is not None else None,
    }
    configuration = {
        "bos_token": None if bos is None else vocabulary.tokens[bos],
        "eos_token": vocabulary.tokens[ends[0]] if ends else None,
        NEEDS_ENCODER: needs_encoder,
        INFILL_TOKENS: vocabulary.infill_tokens(),
        TOKENS: (others := _other_tokens(vocabulary)),
        SPECIAL_IDS: [token for token in map(int, others) if vocabulary.kinds[token] in (CONTROL, UNKNOWN)],
    }
    return TokenizerFiles(msgspec.json.encode(whole), configuration, generation)


def tokenizer_notes(parameters: Parameters) -> list[str]:
    """Return what the operator should know about the tokenizer of a file. Raises CheckpointError for one that cannot be
    built, as far as that is found without building it."""
    vocabulary = VocabularyLists(parameters)
    vocabulary.suppressed_tokens()
    if vocabulary.model == BYTE_LEVEL:
        _rule(vocabulary)
    if vocabulary.model == SENTENCE_PIECE:
        vocabulary.scores()
    else:
        _require_merges(vocabulary)
    others = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id")
    for name in (*chain.from_iterable(INFILL.values()), *others):
        vocabulary.special(name)
    notes, where = vocabulary.notes, parameters.where
    if vocabulary.model == BYTE_LEVEL and not parameters.whole("tokenizer.ggml.pre"):
        notes.append(
            f"{where} does not say how it cuts text ('tokenizer.ggml.pre'): the rule {DEFAULT!r} is used, as in "
            "llama.cpp, and its completions may be worse than those of a file that says so."
        )
    if vocabulary.flag("add_eos_token", False):
        notes.append(f"{where} asks for an end token after every text; a completion continues its prompt.")
    if adds_start(vocabulary) and vocabulary.special("bos_token_id") is None:
        notes.append(f"{where} asks for a start token before every text, but names none: there is none.")
    return notes


def adds_start(vocabulary: VocabularyLists) -> bool:
    """Return whether the start token is put before every text. Raises CheckpointError."""
    if vocabulary.model != BYTE_LEVEL:  # of Gemma 4 whatever the file says, as in llama.cpp
        return vocabulary.flag("add_bos_token", True) or vocabulary.model == MERGED_LINES
    return vocabulary.flag("add_bos_token", _rule(vocabulary).adds_start)


def _rule(vocabulary: VocabularyLists) -> PreTokenizer:
    """Return how a byte-level tokenizer cuts a text. Raises CheckpointError."""
    name = vocabulary.parameters.whole("tokenizer.ggml.pre") or DEFAULT
    rule = PRE_TOKENIZERS.get(str(name))
    if rule is None:
        raise CheckpointError(
            f"{vocabulary.parameters.where} cuts text by the rule {str(name)[:80]!r} ('tokenizer.ggml.pre'), which "
            f"Onward does not know. It knows {', '.join(sorted(PRE_TOKENIZERS))}."
        )
    return rule


def _other_tokens(vocabulary: VocabularyLists) -> dict[str, int | str]:
    """Return what the tokens stand for that the vocabulary of texts does not have, or writes in another way."""
    found: dict[str, int | str] = {}
    for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)):
        first = vocabulary.ids[text]
        if kind in vocabulary.literal_kinds and (first != token or not text.isascii() or text[:3] == "<0x"):
            found[str(token)] = text
        elif first != token:
            found[str(token)] = first
    return found


def _byte_level(vocabulary: VocabularyLists) -> dict[str, Any]:
    rule = _rule(vocabulary)
    steps: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in rule.patterns
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, level]},
        "decoder": {**level, "use_regex": True},
        "model": _bpe(vocabulary, _stated_merges(vocabulary)) | {"ignore_merges": rule.ignore_merges},
    }


def _require_merges(vocabulary: VocabularyLists) -> None:
    """Raise CheckpointError where there should be merges and are none."""
    stated = vocabulary.parameters.whole(MERGES)
    num_merges = len(stated if isinstance(stated, Strings) else vocabulary.parameters.list_of(str, MERGES) or [])
    if num_merges:
        return
    pieces = zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    if any(kind == NORMAL and len(text) > 1 for text, kind in pieces):
        raise CheckpointError(
            f"{vocabulary.parameters.where} has no merges: every text would become single bytes, which the model has "
            "never seen. Download it again, or convert it with a newer version of llama.cpp."
        )


def _stated_merges(vocabulary: VocabularyLists) -> list[list[str]]:
    """Return the merges as pairs: a line has a space between two tokens, the first of which may begin with one."""
    _require_merges(vocabulary)
    pairs = []
    for line in vocabulary.parameters.list_of(str, MERGES) or []:
        left, _, right = line[1:].partition(" ")
        pairs.append([line[:1] + left, right])
    for left, right in pairs:
        if not (left in vocabulary.ids and right in vocabulary.ids and left + right in vocabulary.ids):
            raise CheckpointError(
                f"{vocabulary.parameters.where} merges {left[:40]!r} and {right[:40]!r}, which are not tokens: its "
                "tokenizer is broken."
            )
    return pairs


def _words(vocabulary: VocabularyLists) -> dict[str, Any]:
    """SentencePiece's tokens as a list of words."""
    unknown = vocabulary.special("unknown_token_id")
    model = {"type": "WordLevel", "vocab": vocabulary.ids, "unk_token": vocabulary.tokens[unknown or 0]}
    return {"normalizer": None, "pre_tokenizer": None, "decoder": _SENTENCE_PIECE_DECODER, "model": model}


def sentence_piece_encoder(parameters: Parameters) -> Callable[[str], list[int]]:
    """Return what makes tokens of a text as llama.cpp does (`llm_tokenizer_spm` of src/llama-vocab.cpp), for a file
    that `tokenizer_files` has accepted."""
    vocabulary = VocabularyLists(parameters)
    scores = vocabulary.scores()
    by_text = {text: (token, float(scores[token])) for text, token in vocabulary.ids.items()}
    unknown = vocabulary.special("unknown_token_id") or 0
    merging = Merging(by_text, unknown, has_space_before=vocabulary.flag("add_space_prefix", True))
    added = _added_tokens(vocabulary)
    strips = frozenset(each["content"] for each in added if each["rstrip"])
    return around({each["content"]: each["id"] for each in added}, merging.encode, strips)


def _sentence_piece(vocabulary: VocabularyLists, merges: list[list[str]], *, has_space_before: bool) -> dict[str, Any]:
    """SentencePiece's BPE: what its scores prefer is merged first, and what has no token becomes bytes."""
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    if has_space_before:
        steps.insert(0, {"type": "Prepend", "prepend": _SPACE})
    unknown = vocabulary.special("unknown_token_id")
    options = {"unk_token": vocabulary.tokens[unknown or 0], "fuse_unk": True, "byte_fallback": True}
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": _SENTENCE_PIECE_DECODER,
        "model": _bpe(vocabulary, merges) | options,
    }


def _merged_lines(vocabulary: VocabularyLists) -> dict[str, Any]:
    """Gemma 4's BPE: whole lines are merged, and what lies between them; what has no token becomes bytes."""
    merges = _with_line_breaks(vocabulary, _stated_merges(vocabulary))
    split = {"type": "Split", "pattern": {"Regex": r"[^\n]+|\n+"}, "behavior": "Isolated", "invert": False}
    return _sentence_piece(vocabulary, merges, has_space_before=False) | {"pre_tokenizer": split}


def _with_line_breaks(vocabulary: VocabularyLists, pairs: list[list[str]]) -> list[list[str]]:
    """Return pairs, then merges that lead to each token of line breaks, which llama.cpp finds without merges."""
    ranks = {(left, right): rank for rank, (left, right) in enumerate(pairs) if left[:1] == right[:1] == "\n"}
    breaks = sorted((text for text in vocabulary.ids if text and not text.strip("\n")), key=len)
    if breaks and len(breaks[-1]) > MAX_RUN_CHARACTERS:
        raise CheckpointError(
            f"{vocabulary.parameters.where} has a token of {len(breaks[-1])} line breaks, more than any model's: "
            "download it again."
        )
    for text in breaks:
        left = _merged_by_rank([*text], ranks)
        while len(left) > 1:
            union = left[0] + left[1]
            if union not in vocabulary.ids:
                raise CheckpointError(
                    f"{vocabulary.parameters.where} has a token of {len(text)} line breaks, but none of {len(union)}: "
                    "its tokenizer is broken."
                )
            ranks[left[0], left[1]] = len(pairs)
            pairs.append(left[:2])
            left = [union, *left[2:]]
    return pairs


def _bpe(vocabulary: VocabularyLists, merges: list[list[str]]) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary.ids,
        "merges": merges,
    }


def strips_space(parameters: Parameters) -> bool:
    """Return whether special tokens absorb the white space after them, which the model's name decides."""
    name = str(parameters.whole("general.name") or "").lower()
    return "phi-3" in name or "phi3" in name


def _added_tokens(vocabulary: VocabularyLists) -> list[dict[str, Any]]:
    """Return the tokens that are recognised in a text as a whole: control tokens, the unknown one, and those that the
    makers added. Phi 3's absorb the white space after them, which a file cannot state (as in llama.cpp)."""
    strips = strips_space(vocabulary.parameters)
    flags = {"single_word": False, "lstrip": False, "normalized": False}
    return [
        {
            "id": token,
            "content": text,
            **flags,
            "rstrip": strips and text not in _UNSTRIPPED,
            "special": kind in (CONTROL, UNKNOWN),
        }
        for token, (text, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
        if kind in vocabulary.literal_kinds and text and vocabulary.ids[text] == token
    ]


def _post_processor(text: str, token: int) -> dict[str, Any]:
    """Return what puts the start token before every text."""
    start, first = {"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [start, first],
        "pair": [start, first, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {text: {"id": text, "ids": [token], "tokens": [text]}},
    }
