"""Drafts of what a choice will generate next, taken from text that it seems to repeat.

A draft costs little until it is evaluated, so every text is followed and its proposals judged, evaluated or not: what
is known of their quality comes from the text alone. Following waits until a draft is asked for: many tokens at once
are followed faster. Drafts never change a token: `step` accepts one only where the sampler samples it.
"""

from __future__ import annotations

from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass
from typing import Literal, NamedTuple

Source = Literal["prediction", "lookup"]

MAX_DRAFT_TOKENS = 48
"""Most tokens of one draft."""
RESUME_WINDOW_TOKENS = 32
"""How far ahead in a prediction the text is looked for when it has left it."""
MAX_STRAY_TOKENS = 2
"""After so many tokens beside a prediction nothing is drafted until two tokens in a row are found in it."""
MAX_INDEXED_TOKENS = 32_768
"""Of a longer prompt only the last so many tokens are searched."""

_LEARNING_RATE = 0.1
"""How far one surprise moves a track's quality."""
_PRIOR_RUN_TOKENS = 3.0
"""How many tokens that came as expected weigh as much as what was known before them."""
_PRIOR_BREAK_TOKENS = 60.0
"""How many tokens of a text come as expected before one does not, as long as nothing better is known."""
_MIN_QUALITY, _MAX_QUALITY = 0.02, 0.95
"""Bounds of a quality: no text is abandoned for ever, none is blindly trusted."""
_BITS = 21
"""Token ids are below 2**21."""
_TRIPLE = (1 << 3 * _BITS) - 1


class Proposal(NamedTuple):
    """Tokens that may follow, and for each the probability that it is sampled, given that all before it were."""

    tokens: list[int]
    probabilities: list[float]
    source: Source


@dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens, at least one, that a step evaluates behind a choice's newest token."""

    tokens: list[int]
    source: Source


class Track:
    """A place in a text that the choice seems to repeat, and how well that has gone.

    `place` is the index of the token expected next, -1 when there is none. `run` counts the tokens that have come
    as expected since the place was found; `quality` is the probability that the first token after a place was found
    comes as expected. It moves by the surprise of each outcome, so it settles where the probabilities are right on the
    whole.
    """

    __slots__ = ("_break_rate", "_breaks", "_seen", "place", "quality", "run")

    def __init__(self, quality: float) -> None:
        self.place = -1
        self.run = 0
        self.quality = quality
        self._breaks = 1.0
        self._seen = _PRIOR_BREAK_TOKENS
        """Tokens that did not come as expected, and all that were expected; as if there had been some before."""
        self._break_rate = self._breaks / self._seen

    def accept(self) -> None:
        """The expected token came."""
        self._learn(1.0)
        self.place += 1
        self.run += 1

    def reject(self) -> None:
        """Another token than the expected one came."""
        self._breaks += 1.0
        self._learn(0.0)
        self.place = -1
        self.run = 0

    def probabilities(self, count: int, min_probability: float) -> list[float]:
        """The probability of each of the next tokens, at most `count` and only those above `min_probability`.

        The longer a text has been repeated, the longer it will be; but never longer than texts have been on the whole.
        """
        doubt, weight = (1.0 - self.quality) * _PRIOR_RUN_TOKENS, self.run + _PRIOR_RUN_TOKENS
        probability = 1.0
        probabilities: list[float] = []
        for _ in range(count):
            probability *= 1.0 - max(doubt / weight, self._break_rate)
            if probability <= min_probability:
                break
            probabilities.append(probability)
            weight += 1.0
        return probabilities

    def _learn(self, outcome: float) -> None:
        doubt = (1.0 - self.quality) * _PRIOR_RUN_TOKENS / (self.run + _PRIOR_RUN_TOKENS)
        surprise = outcome - (1.0 - max(doubt, self._break_rate))
        self.quality = min(max(self.quality + _LEARNING_RATE * surprise, _MIN_QUALITY), _MAX_QUALITY)
        self._seen += 1.0
        self._break_rate = self._breaks / self._seen


@dataclass(slots=True)
class Index:
    """What all choices of a job look up: where tokens come in its prompt and in its prediction. Not thread-safe.

    `triples`: where each three tokens of the prompt came last, as the index of what follows. `pairs`: where each two
    of the prediction come first, likewise; None until a choice has left the prediction.
    """

    triples: dict[int, int]
    pairs: dict[int, int] | None = None


class Lookup:
    """Where each three tokens of a choice's own text came last, and what followed them there.

    `shared` is the index of the prompt, one for all choices of a job.
    """

    __slots__ = ("_key", "_own", "shared", "tokens", "track")

    def __init__(self, tokens: list[int], prompt_length: int, shared: dict[int, int]) -> None:
        """`tokens` is the choice's list of prompt and generated tokens, read only."""
        self.tokens = tokens
        self.shared = shared
        self.track = Track(0.3)
        self._own: dict[int, int] = {}
        self._key = _key_of(tokens[max(0, prompt_length - 3) : prompt_length])

    def follow(self, known: int) -> None:
        """Follow the tokens behind the first `known`, one after another."""
        tokens, track, own, shared, key = self.tokens, self.track, self._own, self.shared, self._key
        for token in tokens[known:]:
            if (place := track.place) >= 0:
                if tokens[place] == token:
                    track.accept()
                else:
                    track.reject()
            key = (key << _BITS | token) & _TRIPLE
            if track.place < 0:
                place = own.get(key, -1)
                track.place = place if place >= 0 else shared.get(key, -1)
            known += 1
            own[key] = known
        self._key = key

    def propose(self, count: int, min_probability: float) -> Proposal | None:
        """See Drafter; a text that runs into itself is taken to repeat for ever."""
        place = self.track.place
        if place < 0 or not (probabilities := self.track.probabilities(count, min_probability)):
            return None
        count = len(probabilities)
        found = self.tokens[place : place + count]
        if len(found) < count:
            found = (found * (count // len(found) + 1))[:count]
        return Proposal(found, probabilities, "lookup")


class Prediction:
    """The text that the caller expects, followed token by token, and found again after a change."""

    __slots__ = ("_index", "_last", "_left", "_strayed", "_tokens", "track")

    def __init__(self, tokens: ReadOnly[int], index: Index) -> None:
        self.track = Track(0.8)
        self.track.place = 0
        self.track.run = 2
        self._tokens = tokens
        self._last = 0
        self._left = 0
        """The index at which the choice last left the prediction."""
        self._strayed = 0
        """Tokens of the choice since then."""
        self._index = index

    def follow(self, token: int) -> None:
        track, tokens = self.track, self._tokens
        place = track.place
        expected = 0 <= place < len(tokens)
        if expected and tokens[place] == token:
            track.accept()
            self._left, self._strayed = track.place, 0
        else:
            if expected:
                track.reject()
            self._strayed += 1
            track.place = self._resume(place, token)
        self._last = token

    def propose(self, count: int, min_probability: float) -> Proposal | None:
        """See Drafter."""
        place = self.track.place
        if not 0 <= place < len(self._tokens):
            return None
        probabilities = self.track.probabilities(min(count, len(self._tokens) - place), min_probability)
        if not probabilities:
            return None
        return Proposal(list(self._tokens[place : place + len(probabilities)]), probabilities, "prediction")

    def _resume(self, place: int, token: int) -> int:
        """Where the text goes on: behind the newest two tokens; at first also behind a token left out or replaced."""
        tokens, left = self._tokens, self._left
        if self._index.pairs is None:
            self._index.pairs = _index_pairs(tokens)
        found = self._index.pairs.get(self._last << _BITS | token)
        if found is not None:
            for index in range(left, min(left + RESUME_WINDOW_TOKENS, len(tokens) - 1)):
                if tokens[index + 1] == token and tokens[index] == self._last:
                    return index + 2
            return found
        if place < 0 or self._strayed > MAX_STRAY_TOKENS:
            return -1
        try:
            return tokens.index(token, place, place + RESUME_WINDOW_TOKENS) + 1
        except ValueError:
            return place + 1


class Drafter:
    """All drafts for one choice. Engine thread only; created when the prompt is computed."""

    __slots__ = ("_followed", "_lookup", "_prediction", "index")

    def __init__(
        self, tokens: list[int], prompt_length: int, prediction: ReadOnly[int], index: Index | None = None
    ) -> None:
        """`tokens` is the choice's list of prompt and generated tokens, read only; `index` that of another choice of
        the same job."""
        self.index = index or Index(_index_triples(tokens[:prompt_length]))
        self._lookup = Lookup(tokens, prompt_length, self.index.triples)
        self._prediction = Prediction(prediction, self.index) if prediction else None
        self._followed = prompt_length

    def follow(self) -> bool:
        """Follow what was appended since the last time. Returns whether the next token may now be drafted."""
        lookup, prediction, known = self._lookup, self._prediction, self._followed
        lookup.follow(known)
        if prediction is not None:
            for token in lookup.tokens[known:]:
                prediction.follow(token)
        self._followed = len(lookup.tokens)
        return lookup.track.place >= 0 or (prediction is not None and prediction.track.place >= 0)

    def propose(self, count: int, min_probability: float) -> Proposal | None:
        """At most `count` tokens that may come next, each with a probability above `min_probability`; None where there
        are none."""
        count = min(count, MAX_DRAFT_TOKENS)
        found = self._prediction.propose(count, min_probability) if self._prediction is not None else None
        return found or self._lookup.propose(count, min_probability)


def _key_of(tokens: ReadOnly[int]) -> int:
    key = 0
    for token in tokens:
        key = key << _BITS | token
    return key


def _index_triples(tokens: ReadOnly[int]) -> dict[int, int]:
    """Where each three tokens came last, as the index of what follows; not the very last three."""
    first = max(0, len(tokens) - MAX_INDEXED_TOKENS)
    key, index = 0, {}
    for end, token in enumerate(tokens[first:-1], first + 1):
        key = (key << _BITS | token) & _TRIPLE
        index[key] = end
    return index


def _index_pairs(tokens: ReadOnly[int]) -> dict[int, int]:
    """Where each two tokens came first, as the index of what follows."""
    index: dict[int, int] = {}
    for end in range(2, len(tokens) + 1):
        index.setdefault(tokens[end - 2] << _BITS | tokens[end - 1], end)
    return index
