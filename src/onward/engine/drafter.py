"""Drafts the next tokens of a choice from text that it seems to repeat: its prediction, its prompt, its own output.

A draft costs little until it is evaluated. So a drafter compares every generated token with what it would have drafted,
evaluated or not, and estimates the quality of its drafts from that. It catches up only when a draft is requested: many
tokens at once are faster to compare. Drafts never change a token: `step` accepts only what the sampler samples.
"""

from __future__ import annotations

from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass
from typing import NamedTuple

from onward.engine_load import DraftSource

MAX_DRAFT_TOKENS = 48
"""Maximum tokens of one draft."""
RESUME_WINDOW_TOKENS = 32
"""How far ahead a drafter searches a prediction for the generated text after the two differed."""
MAX_STRAY_TOKENS = 2
"""After this many tokens that differ from a prediction, drafts resume when two successive tokens are found in it."""
MAX_INDEXED_TOKENS = 32_768
"""Tokens at the end of a prompt that are indexed; those before them are not."""

_LEARNING_RATE = 0.1
"""The weight of one prediction error in the quality of a track."""
_PRIOR_RUN_TOKENS = 3.0
"""The number of accepted tokens that weighs as much as the estimate made before them."""
_PRIOR_TOKENS_PER_REJECTION = 60.0
"""Expected tokens per rejected one, before any was observed."""
_LOOKUP_QUALITY, _PREDICTION_QUALITY = 0.3, 0.8
"""Of a track at first."""
_PREDICTION_RUN_TOKENS = 2
"""As how many accepted tokens it counts that a caller states a prediction."""
_MIN_QUALITY, _MAX_QUALITY = 0.02, 0.95
"""Bounds of a quality: every track can recover, and none is certain."""
_BITS = 21
"""Token ids are below 2**21."""
_TRIPLE = (1 << 3 * _BITS) - 1


class Proposal(NamedTuple):
    """Tokens that may follow, and for each the probability that it and all before it are sampled."""

    tokens: list[int]
    probabilities: list[float]
    source: DraftSource


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens, at least one, that a step evaluates after a choice's newest token."""

    tokens: list[int]
    source: DraftSource
    expected: float = 0.0
    """How many of them are expected to be accepted, where that was estimated."""


class Track:
    """The position in a text that a choice seems to repeat, and how often it did.

    `position` is the index of the token expected next, -1 if there is none. `num_accepted` counts the tokens that were
    as expected since the position was found. `quality` is the probability that the first token after that is. Each
    outcome moves it by the error of the predicted probability, so on average the probabilities become correct.
    """

    __slots__ = (
        "_num_expected", "_num_rejected", "_rejection_rate", "num_accepted", "position", "quality",
    )  # fmt: skip

    def __init__(self, quality: float) -> None:
        self.position = -1
        self.num_accepted = 0
        self.quality = quality
        self._num_rejected = 1.0
        self._num_expected = _PRIOR_TOKENS_PER_REJECTION
        """Tokens that were not as expected, and all that were expected, including those of the prior."""
        self._rejection_rate = self._num_rejected / self._num_expected

    def accept(self) -> None:
        """Note that the expected token was generated."""
        self._learn(1.0)
        self.position += 1
        self.num_accepted += 1

    def reject(self) -> None:
        """Note that a token other than the expected one was generated."""
        self._num_rejected += 1.0
        self._learn(0.0)
        self.position = -1
        self.num_accepted = 0

    def probabilities(self, count: int, min_probability: float) -> list[float]:
        """Return the probabilities of the next tokens: at most `count`, and only those above `min_probability`.

        They are higher the longer the text has been repeated, but not higher than the observed rejections allow.
        """
        doubt, weight = (1.0 - self.quality) * _PRIOR_RUN_TOKENS, self.num_accepted + _PRIOR_RUN_TOKENS
        probability = 1.0
        probabilities: list[float] = []
        for _ in range(count):
            probability *= 1.0 - max(doubt / weight, self._rejection_rate)
            if probability <= min_probability:
                break
            probabilities.append(probability)
            weight += 1.0
        return probabilities

    def _learn(self, outcome: float) -> None:
        """Update quality and rejection rate with an outcome: 1.0 for an accepted token, 0.0 for a rejected one."""
        doubt = (1.0 - self.quality) * _PRIOR_RUN_TOKENS / (self.num_accepted + _PRIOR_RUN_TOKENS)
        error = outcome - (1.0 - max(doubt, self._rejection_rate))
        self.quality = min(max(self.quality + _LEARNING_RATE * error, _MIN_QUALITY), _MAX_QUALITY)
        self._num_expected += 1.0
        self._rejection_rate = self._num_rejected / self._num_expected


@dataclass(slots=True)
class Index:
    """Where tokens occur in a job's prompt and prediction, for all its choices. Not thread-safe.

    `triples`: for each three successive tokens of the prompt, the index of the token after their last occurrence.
    `pairs`: for each two of the prediction, the index after their first; None until a choice differed from it.
    """

    triples: dict[int, int]
    pairs: dict[int, int] | None = None


class Lookup:
    """Drafts what followed the last occurrence of the newest three tokens, in the choice's own text or the prompt.

    `shared` is the index of the prompt, which all choices of a job share.
    """

    __slots__ = ("_key", "_own", "shared", "tokens", "track")

    def __init__(self, tokens: list[int], prompt_length: int, shared: dict[int, int]) -> None:
        """`tokens` is the choice's list of prompt and generated tokens, which is not modified here."""
        self.tokens = tokens
        self.shared = shared
        self.track = Track(_LOOKUP_QUALITY)
        self._own: dict[int, int] = {}
        self._key = _key_of(tokens[max(0, prompt_length - 3) : prompt_length])

    def follow(self, known: int) -> None:
        """Compare the tokens after the first `known` with what was expected, one after another."""
        tokens, track, own, shared, key = self.tokens, self.track, self._own, self.shared, self._key
        for token in tokens[known:]:
            if (position := track.position) >= 0:
                if tokens[position] == token:
                    track.accept()
                else:
                    track.reject()
            key = (key << _BITS | token) & _TRIPLE
            if track.position < 0:
                position = own.get(key, -1)
                track.position = position if position >= 0 else shared.get(key, -1)
            known += 1
            own[key] = known
        self._key = key

    def propose(self, count: int, min_probability: float) -> Proposal | None:
        """As `Drafter.propose`. A continuation that reaches the newest token is repeated."""
        position = self.track.position
        if position < 0 or not (probabilities := self.track.probabilities(count, min_probability)):
            return None
        count = len(probabilities)
        found = self.tokens[position : position + count]
        if len(found) < count:
            found = (found * (count // len(found) + 1))[:count]
        return Proposal(found, probabilities, "lookup")


class PredictedText:
    """Drafts from the text that the caller expects, and finds the position again after the generated text differed."""

    __slots__ = ("_index", "_last", "_left", "_num_stray", "_tokens", "track")

    def __init__(self, tokens: ReadOnly[int], index: Index) -> None:
        self.track = Track(_PREDICTION_QUALITY)
        self.track.position = 0
        self.track.num_accepted = _PREDICTION_RUN_TOKENS
        self._tokens = tokens
        self._last = 0
        self._left = 0
        """The index in the prediction at which the generated text last differed."""
        self._num_stray = 0
        """Tokens generated since then."""
        self._index = index

    def follow(self, token: int) -> None:
        track, tokens = self.track, self._tokens
        position = track.position
        expected = 0 <= position < len(tokens)
        if expected and tokens[position] == token:
            track.accept()
            self._left, self._num_stray = track.position, 0
        else:
            if expected:
                track.reject()
            self._num_stray += 1
            track.position = self._resume(position, token)
        self._last = token

    def propose(self, count: int, min_probability: float) -> Proposal | None:
        """As `Drafter.propose`."""
        position = self.track.position
        count = min(count, len(self._tokens) - position)
        if position < 0 or not (probabilities := self.track.probabilities(count, min_probability)):
            return None
        return Proposal(list(self._tokens[position : position + len(probabilities)]), probabilities, "prediction")

    def _resume(self, position: int, token: int) -> int:
        """Return the position after the newest two tokens; soon after a difference, also after one deleted or replaced
        token. -1 if none is found."""
        tokens, left = self._tokens, self._left
        if self._index.pairs is None:
            self._index.pairs = _index_pairs(tokens)
        found = self._index.pairs.get(self._last << _BITS | token)
        if found is not None:
            for index in range(left, min(left + RESUME_WINDOW_TOKENS, len(tokens) - 1)):
                if tokens[index + 1] == token and tokens[index] == self._last:
                    return index + 2
            return found
        if position < 0 or self._num_stray > MAX_STRAY_TOKENS:
            return -1
        try:
            return tokens.index(token, position, position + RESUME_WINDOW_TOKENS) + 1
        except ValueError:
            return position + 1


class Drafter:
    """Drafts for one choice, from its prediction and by lookup. Engine thread only. Created after prefill."""

    __slots__ = ("_followed", "_lookup", "_prediction", "index")

    def __init__(
        self, tokens: list[int], prompt_length: int, prediction: ReadOnly[int], index: Index | None = None
    ) -> None:
        """`tokens` is the choice's list of prompt and generated tokens, which is not modified here; `index` that of
        another choice of the same job, if there is one."""
        self.index = index or Index(_index_triples(tokens[:prompt_length]))
        self._lookup = Lookup(tokens, prompt_length, self.index.triples)
        self._prediction = PredictedText(prediction, self.index) if prediction else None
        self._followed = prompt_length

    def follow(self) -> bool:
        """Process the tokens appended since the last call. Returns whether the next token may be drafted now."""
        lookup, prediction, known = self._lookup, self._prediction, self._followed
        lookup.follow(known)
        if prediction is not None:
            for token in lookup.tokens[known:]:
                prediction.follow(token)
        self._followed = len(lookup.tokens)
        return lookup.track.position >= 0 or (prediction is not None and prediction.track.position >= 0)

    def propose(self, count: int, min_probability: float) -> Proposal | None:
        """Return at most `count` tokens that may come next, and at most MAX_DRAFT_TOKENS: those with a probability
        above `min_probability`; None if there is no such token."""
        count = min(count, MAX_DRAFT_TOKENS)
        found = self._prediction.propose(count, min_probability) if self._prediction is not None else None
        return found or self._lookup.propose(count, min_probability)


def _key_of(tokens: ReadOnly[int]) -> int:
    """Return the key of up to three tokens: their ids in _BITS bits each, the last one lowest."""
    key = 0
    for token in tokens:
        key = key << _BITS | token
    return key


def _index_triples(tokens: ReadOnly[int]) -> dict[int, int]:
    """Return the index after the last occurrence of each three successive tokens, except the very last three."""
    first = max(0, len(tokens) - MAX_INDEXED_TOKENS)
    key, index = 0, {}
    for end, token in enumerate(tokens[first:-1], first + 1):
        key = (key << _BITS | token) & _TRIPLE
        index[key] = end
    return index


def _index_pairs(tokens: ReadOnly[int]) -> dict[int, int]:
    """Return the index after the first occurrence of each two successive tokens."""
    index: dict[int, int] = {}
    for end in range(2, len(tokens) + 1):
        index.setdefault(tokens[end - 2] << _BITS | tokens[end - 1], end)
    return index
