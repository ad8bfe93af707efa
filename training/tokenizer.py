"""A byte-level BPE tokenizer that round-trips every string and adds nothing of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.corpus import CODE_SOURCE, Source
from training.files import replace_text
from training.presets import VOCABULARY_SIZE

END_OF_TEXT = "<|endoftext|>"
FIM_PREFIX = "<|fim_prefix|>"
FIM_SUFFIX = "<|fim_suffix|>"
FIM_MIDDLE = "<|fim_middle|>"
FIM_PAD = "<|fim_pad|>"
SPECIAL_TOKENS = (END_OF_TEXT, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FIM_PAD)

# Words with their leading space, single digits, runs of punctuation, and runs of
# blanks whose last space goes to the word that follows: so indentation is one token.
WORD_PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# How much of each source the tokenizer reads, in characters.
SAMPLE_CHARACTERS = {
    "tinystories": 4_000_000,
    "storybooks_cc_by": 1_500_000,
    "fairytaleqa": 3_500_000,
    "children_classics": 3_000_000,
    "chilit": 5_000_000,
    "plain_fiction": 2_000_000,
    CODE_SOURCE: 3_500_000,
}
PIECE_CHARACTERS = 4_000


def train_tokenizer(sources: dict[str, Source], seed: int) -> Tokenizer:
    """Learn the vocabulary from a fixed random sample of the training split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(sources, seed), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write `tokenizer.json` whole or not at all."""
    replace_text(path, tokenizer.to_str(pretty=False))


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`."""
    return Tokenizer.from_file(str(path))


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the five special tokens, by their text."""
    return {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of plain text; nothing is added."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def _sample(sources: dict[str, Source], seed: int) -> Iterator[str]:
    """Yield pieces of each source, evenly spread over it, up to its share."""
    for name, characters in SAMPLE_CHARACTERS.items():
        pieces = [
            document.text[start : start + PIECE_CHARACTERS]
            for document in sources[name].train
            for start in range(0, len(document.text), PIECE_CHARACTERS)
        ]
        random.Random(f"{seed}/{name}").shuffle(pieces)
        taken = 0
        for piece in pieces:
            if taken >= characters:
                break
            taken += len(piece)
            yield piece
