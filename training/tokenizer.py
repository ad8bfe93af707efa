"""A byte-level BPE tokenizer that round-trips every string and adds no tokens."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.corpus import CODE_SOURCE, Source
from training.files import replace_text
from training.presets import VOCAB_SIZE

END_OF_TEXT = "<|endoftext|>"
FIM_PREFIX = "<|fim_prefix|>"
FIM_SUFFIX = "<|fim_suffix|>"
FIM_MIDDLE = "<|fim_middle|>"
FIM_PAD = "<|fim_pad|>"
SPECIAL_TOKENS = (END_OF_TEXT, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, FIM_PAD)

# Words with their leading space, single digits, runs of punctuation, and runs of spaces
# whose last one belongs to the following word, so that indentation is one token.
WORD_PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# How much of each source the tokenizer is trained on, in characters.
SAMPLE_CHARACTERS = {
    "tinystories": 4_000_000,
    "storybooks_cc_by": 1_500_000,
    "fairytaleqa": 3_500_000,
    "children_classics": 3_000_000,
    "chilit": 5_000_000,
    "plain_fiction": 2_000_000,
    CODE_SOURCE: 3_500_000,
}
EXCERPT_CHARACTERS = 4_000


def train_tokenizer(sources: dict[str, Source], seed: int) -> Tokenizer:
    """Train a tokenizer on a seeded random sample of the training split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sample(sources, seed), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, path: Path) -> None:
    """Write `tokenizer.json` atomically."""
    replace_text(path, tokenizer.to_str(pretty=False))


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a `tokenizer.json`."""
    return Tokenizer.from_file(str(path))


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the five special tokens by their text."""
    return {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the token ids of plain text, without added tokens."""
    return tokenizer.encode(text, add_special_tokens=False).ids


def _sample(sources: dict[str, Source], seed: int) -> Iterator[str]:
    """Yield excerpts of each source in random order, up to its number of characters."""
    for name, characters in SAMPLE_CHARACTERS.items():
        excerpts = [
            document.text[start : start + EXCERPT_CHARACTERS]
            for document in sources[name].train
            for start in range(0, len(document.text), EXCERPT_CHARACTERS)
        ]
        random.Random(f"{seed}/{name}").shuffle(excerpts)
        taken = 0
        for excerpt in excerpts:
            if taken >= characters:
                break
            taken += len(excerpt)
            yield excerpt
