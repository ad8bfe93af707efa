"""SentencePiece's own way from text to tokens, for models whose rules `tokenizers` does not follow exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from onward.checkpoints.normalization import Normalizer
from onward.checkpoints.segmentation import BytePairs, Cut, Segmenter, Unigram
from onward.checkpoints.sentencepiece import SentencePieces
from onward.checkpoints.token_kinds import BYTE, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from onward.errors import CheckpointError

MAX_TOKEN_CHARACTERS = 512
"""Of a token of a unigram model: how far it is looked for at each character of a text."""
MAX_CHARACTERS = 4_000_000
"""Of all tokens of a unigram model, which take a hundred bytes each. The largest known one has 1.5 million."""


def needs_encoder(model: SentencePieces) -> bool:
    """Return whether a list of merges and the replacement of spaces would not do."""
    rules = model.rules
    if model.is_unigram or rules.replaced or rules.drops_spaces or (rules.kept and rules.has_space_before):
        return True
    texts = [text for text in model.texts(NORMAL) if len(text) > 1]
    scores = Counter(model.scores[token] for text, token in model.texts(NORMAL).items() if len(text) > 1)
    return len(scores) < len(texts) or any(len(text) > 1 for text in model.texts(UNUSED))


class SentencePieceEncoder:
    """Encodes texts without special tokens in them. Immutable, safe from every thread."""

    def __init__(self, model: SentencePieces, where: str) -> None:
        """`where` names the file in messages. Raises CheckpointError."""
        unknown = next(iter(model.texts(UNKNOWN).values()), None)
        if unknown is None:
            raise CheckpointError(f"{where} has no token for what is unknown: download it again.")
        self._unknown = unknown
        self._normalizer = Normalizer(model.rules)
        self._segmenter = _segmenter(model, where)
        self._bytes = _byte_tokens(model) if model.has_byte_tokens else {}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return list(self._tokens(self._segmenter.cuts(self._normalizer.normalized(text))))

    def _tokens(self, cuts: Iterable[Cut]) -> Iterable[int]:
        is_behind_unknown = False
        for token, text in cuts:
            is_unknown = token < 0 or token == self._unknown
            if is_unknown and self._bytes:
                yield from (self._bytes[byte] for byte in text.encode())
            elif not is_unknown:
                yield token
            elif not is_behind_unknown:  # a row of unknown characters is one token
                yield self._unknown
            is_behind_unknown = is_unknown


def _segmenter(model: SentencePieces, where: str) -> Segmenter:
    normal = {text: (token, model.scores[token]) for text, token in model.texts(NORMAL).items()}
    chosen = model.texts(USER_DEFINED)
    if not model.is_unigram:
        return BytePairs(normal, chosen, {text: model.scores[token] for text, token in model.texts(UNUSED).items()})
    lengths = list(map(len, model.tokens))
    if sum(lengths) > MAX_CHARACTERS or max(lengths) > MAX_TOKEN_CHARACTERS:
        raise CheckpointError(f"{where} has longer tokens than any model needs: download it again.")
    return Unigram(normal, chosen)


def _byte_tokens(model: SentencePieces) -> dict[int, int]:
    """Return the token of each byte; {} where some are missing."""
    found = model.texts(BYTE)
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    return {byte: found[name] for byte, name in enumerate(names)} if all(name in found for name in names) else {}
