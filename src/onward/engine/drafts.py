"""Guesses of what a choice will say next, read from text that it seems to repeat.

A guess costs little until it is evaluated, so every text is followed and its guesses judged, evaluated or not: what is
known of their quality comes from the text alone. Following waits until somebody asks: many tokens at once are followed
faster. Guesses never change a token: `step` keeps one only where the sampler draws it.
"""

from __future__ import annotations

from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass
from typing import Literal, NamedTuple

Source = Literal["prediction", "lookup"]

LONGEST = 48
"""Most tokens of one guess."""
NEAR = 32
"""How far ahead in a prediction the text is looked for when it has left it."""
PATIENCE = 2
"""After so many tokens beside a prediction nothing is guessed until two tokens in a row are found in it."""
INDEXED = 32_768
"""Of a longer prompt only the last so many tokens are searched."""

_RATE = 0.1
"""How far one surprise moves a track's quality."""
_PRIOR = 3.0
"""How many tokens that came as expected weigh as much as what was known before them."""
_USUAL_RUN = 60.0
"""How many tokens of a text come as expected before one does not, as long as nothing better is known."""
_LEAST, _GREATEST = 0.02, 0.95
"""Bounds of a quality: no text is given up for ever, none is blindly trusted."""
_BITS = 21
"""Token ids are below 2**21."""
_TRIPLE = (1 << 3 * _BITS) - 1


class Guess(NamedTuple):
    """Tokens that may follow, and for each the chance that it is drawn, all before it having been drawn."""

    tokens: list[int]
    chances: list[float]
    source: Source


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens, at least one, that a step evaluates behind a choice's newest token."""

    tokens: list[int]
    source: Source


class Track:
    """A place in a text that the choice seems to repeat, and how well that has gone.

    `place` is the index of the token expected next, -1 when there is none. `run` counts the tokens that have come
    as expected since the place was found; `quality` is the chance that the first token after a place was found comes
    as expected. It moves by the surprise of each outcome, so it settles where the chances are right on the whole.
    """

    __slots__ = ("_breaks", "_doubt", "_seen", "place", "quality", "run")

    def __init__(self, quality: float) -> None:
        self.place = -1
        self.run = 0
        self.quality = quality
        self._breaks = 1.0
        self._seen = _USUAL_RUN
        """Tokens that did not come as expected, and all that were expected; as if there had been some before."""
        self._doubt = self._breaks / self._seen

    def hit(self) -> None:
        self._learn(1.0)
        self.place += 1
        self.run += 1

    def miss(self) -> None:
        self._breaks += 1.0
        self._learn(0.0)
        self.place = -1
        self.run = 0

    def chances(self, count: int, floor: float) -> list[float]:
        """The chance of each of the next tokens, `count` at most and only those above `floor`: the longer a text has
        been repeated, the longer it will; but never longer than texts have been on the whole."""
        doubt, weight, least = (1.0 - self.quality) * _PRIOR, self.run + _PRIOR, self._doubt
        chance = 1.0
        chances: list[float] = []
        for _ in range(count):
            chance *= 1.0 - max(doubt / weight, least)
            if chance <= floor:
                break
            chances.append(chance)
            weight += 1.0
        return chances

    def _learn(self, outcome: float) -> None:
        said = 1.0 - max((1.0 - self.quality) * _PRIOR / (self.run + _PRIOR), self._doubt)
        self.quality = min(max(self.quality + _RATE * (outcome - said), _LEAST), _GREATEST)
        self._seen += 1.0
        self._doubt = self._breaks / self._seen


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

    def __init__(self, tokens: list[int], shared: dict[int, int]) -> None:
        """`tokens` is the choice's list of prompt and completion, read only; at this time it is the prompt."""
        self.tokens = tokens
        self.shared = shared
        self.track = Track(0.3)
        self._own: dict[int, int] = {}
        self._key = _key_of(tokens[-3:])

    def follow(self, known: int) -> None:
        """Take in the tokens behind the first `known`, one after another."""
        tokens, track, own, shared, key = self.tokens, self.track, self._own, self.shared, self._key
        for token in tokens[known:]:
            if (place := track.place) >= 0:
                if tokens[place] == token:
                    track.hit()
                else:
                    track.miss()
            key = (key << _BITS | token) & _TRIPLE
            if track.place < 0:
                place = own.get(key, -1)
                track.place = place if place >= 0 else shared.get(key, -1)
            known += 1
            own[key] = known
        self._key = key

    def guess(self, count: int, floor: float) -> Guess | None:
        """See Drafter; a text that runs into itself is taken to go on in circles."""
        place = self.track.place
        if place < 0 or not (chances := self.track.chances(count, floor)):
            return None
        count = len(chances)
        found = self.tokens[place : place + count]
        if len(found) < count:
            found = (found * (count // len(found) + 1))[:count]
        return Guess(found, chances, "lookup")


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
            track.hit()
            self._left, self._strayed = track.place, 0
        else:
            if expected:
                track.miss()
            self._strayed += 1
            track.place = self._resume(place, token)
        self._last = token

    def guess(self, count: int, floor: float) -> Guess | None:
        """See Drafter."""
        place = self.track.place
        if not 0 <= place < len(self._tokens):
            return None
        chances = self.track.chances(min(count, len(self._tokens) - place), floor)
        return Guess(list(self._tokens[place : place + len(chances)]), chances, "prediction") if chances else None

    def _resume(self, place: int, token: int) -> int:
        """Where the text goes on: behind the newest two tokens; at first also behind a token left out or replaced."""
        tokens, left = self._tokens, self._left
        if self._index.pairs is None:
            self._index.pairs = _index_pairs(tokens)
        found = self._index.pairs.get(self._last << _BITS | token)
        if found is not None:
            for index in range(left, min(left + NEAR, len(tokens) - 1)):
                if tokens[index + 1] == token and tokens[index] == self._last:
                    return index + 2
            return found
        if place < 0 or self._strayed > PATIENCE:
            return -1
        try:
            return tokens.index(token, place, place + NEAR) + 1
        except ValueError:
            return place + 1


class Drafter:
    """All guesses for one choice. Engine thread only; made when the prompt has been read."""

    __slots__ = ("_followed", "_lookup", "_prediction", "index")

    def __init__(self, tokens: list[int], prediction: ReadOnly[int], index: Index | None = None) -> None:
        """`tokens` as in Lookup; `index` that of another choice of the same job."""
        self.index = index or Index(_index_triples(tokens))
        self._lookup = Lookup(tokens, self.index.triples)
        self._prediction = Prediction(prediction, self.index) if prediction else None
        self._followed = len(tokens)

    def follow(self) -> bool:
        """Take in what was drawn and appended since the last time; whether the next token may now be guessed."""
        lookup, prediction, known = self._lookup, self._prediction, self._followed
        lookup.follow(known)
        if prediction is not None:
            for token in lookup.tokens[known:]:
                prediction.follow(token)
        self._followed = len(lookup.tokens)
        return lookup.track.place >= 0 or (prediction is not None and prediction.track.place >= 0)

    def guess(self, count: int, floor: float) -> Guess | None:
        """At most `count` tokens that may follow what `follow` took in, each with a chance above `floor`; None where
        there are none."""
        count = min(count, LONGEST)
        found = self._prediction.guess(count, floor) if self._prediction is not None else None
        return found or self._lookup.guess(count, floor)


def _key_of(tokens: ReadOnly[int]) -> int:
    key = 0
    for token in tokens:
        key = key << _BITS | token
    return key


def _index_triples(tokens: ReadOnly[int]) -> dict[int, int]:
    """Where each three tokens came last, as the index of what follows; not the very last three."""
    first = max(0, len(tokens) - INDEXED)
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
