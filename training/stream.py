"""The endless, seeded, resumable stream of training rows.

Nothing here holds a random state: every draw is a function of (seed, stage, source,
epoch, index), so the whole position in the data is a few counters and the tokens
carried over from the last row.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from training import infill
from training.chunks import chunk_source
from training.corpus import Source
from training.presets import Stage
from training.tokenizer import END_OF_TEXT, FIM_MIDDLE, FIM_PAD, FIM_PREFIX, FIM_SUFFIX, encode, special_ids

MOST_WAITING = 64
IGNORED_LABEL = -100
SEAM_RATE = 0.4
CHARACTERS_PER_SEAM = 200
MIDDLE_WEIGHT = 3.0
"""How much a token of a missing middle counts in the loss: there are few of them."""


@dataclass
class Item:
    """One encoded document: `whole` ones (infilling) must not be cut across rows.

    The last `middle` tokens are what an infilling example asks for. A document is
    `fresh` until its start has been used.
    """

    ids: list[int]
    whole: bool
    fresh: bool = True
    middle: int = 0


@dataclass
class Cursor:
    """Where one source stands: its pass over the chunks, the next chunk, tokens served."""

    epoch: int = 0
    index: int = 0
    served: int = 0


@dataclass
class _Deck:
    """One source's chunks and their order in the present epoch."""

    name: str
    is_code: bool
    chunks: list[str]
    order: list[int] = field(default_factory=list)
    ordered_epoch: int = -1


class RowStream:
    """Rows of `sequence_length + 1` token ids for one stage of training."""

    def __init__(self, sources: dict[str, Source], tokenizer: Tokenizer, stage: Stage, number: int, seed: int) -> None:
        self.stage = stage
        self._label = f"{seed}/{number}"
        self._tokenizer = tokenizer
        ids = special_ids(tokenizer)
        self._end, self._pad = ids[END_OF_TEXT], ids[FIM_PAD]
        self._never_predicted = [ids[FIM_PREFIX], ids[FIM_SUFFIX], ids[FIM_MIDDLE], self._pad]
        self._decks = {
            name: _Deck(name, sources[name].is_code, chunk_source(sources[name], stage.sequence_length))
            for name in stage.mixture
        }
        self._cursors = {name: Cursor() for name in stage.mixture}
        self._waiting: list[Item] = []
        self._rows = 0

    def state(self) -> dict[str, Any]:
        """The position in the data, as plain values."""
        return {
            "cursors": {name: vars(cursor).copy() for name, cursor in self._cursors.items()},
            "waiting": [vars(item).copy() for item in self._waiting],
            "rows": self._rows,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly where `state` was taken."""
        self._cursors = {name: Cursor(**cursor) for name, cursor in state["cursors"].items()}
        self._waiting = [Item(**item) for item in state["waiting"]]
        self._rows = state["rows"]

    def served(self) -> dict[str, int]:
        """Tokens taken so far from each source."""
        return {name: cursor.served for name, cursor in self._cursors.items()}

    def rows(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inputs, labels and loss weights, each [count, sequence_length].

        The infilling marks and the padding have the label -100: they are read, never
        written, so that a text begun from the end of text alone is not an infilling example.
        """
        made = [self._row() for _ in range(count)]
        table = np.array([row for row, _ in made], dtype=np.int64)
        weights = np.array([places for _, places in made], dtype=np.float32)
        labels = table[:, 1:].copy()
        labels[np.isin(labels, self._never_predicted)] = IGNORED_LABEL
        return table[:, :-1], labels, weights[:, 1:]

    def _row(self) -> tuple[list[int], list[float]]:
        """Fill one row: whole items only where they fit, plain ones cut at its end; its ids and loss weights."""
        width = self.stage.sequence_length + 1
        row: list[int] = []
        weights: list[float] = []
        while len(row) < width and len(self._waiting) <= MOST_WAITING:
            item = self._next_fitting(width - len(row))
            if not row and item.fresh and self._rows % 2 == 0:
                row.append(self._end)
                weights.append(1.0)
            room = width - len(row)
            row += item.ids[:room]
            weights += ([1.0] * (len(item.ids) - item.middle) + [MIDDLE_WEIGHT] * item.middle)[:room]
            if len(item.ids) > room:
                self._waiting.insert(0, Item(item.ids[room:], whole=False, fresh=False))
        self._rows += 1
        padding = width - len(row)
        return row + [self._pad] * padding, weights + [1.0] * padding

    def _next_fitting(self, room: int) -> Item:
        """A waiting infilling item that fits, else a waiting plain one, else new ones until one may go here."""
        fitting = [place for place, item in enumerate(self._waiting) if self._may_go(item, room)]
        if fitting:
            return self._waiting.pop(max(fitting, key=lambda place: self._waiting[place].whole))
        while True:
            item, *others = self._draw()
            self._waiting += others
            if self._may_go(item, room) or len(self._waiting) > MOST_WAITING:
                return item
            self._waiting.append(item)

    @staticmethod
    def _may_go(item: Item, room: int) -> bool:
        return not item.whole or len(item.ids) < room

    def _draw(self) -> list[Item]:
        """The next document of the source that is furthest behind its share, in one or more items."""
        total = sum(cursor.served for cursor in self._cursors.values()) + 1
        shares = sum(self.stage.mixture.values())

        def deficit(name: str) -> float:
            return self.stage.mixture[name] / shares * total - self._cursors[name].served

        name = max(self._cursors, key=deficit)
        text, draw = self._next_chunk(self._decks[name], self._cursors[name])
        items = self._encode(text, self._decks[name].is_code, draw)
        self._cursors[name].served += sum(len(item.ids) for item in items)
        return items

    def _next_chunk(self, deck: _Deck, cursor: Cursor) -> tuple[str, random.Random]:
        """The next chunk of a deck, and the random numbers that belong to it."""
        if cursor.index >= len(deck.chunks):
            cursor.epoch, cursor.index = cursor.epoch + 1, 0
        if deck.ordered_epoch != cursor.epoch:
            deck.order = list(range(len(deck.chunks)))
            random.Random(f"{self._label}/{deck.name}/{cursor.epoch}").shuffle(deck.order)
            deck.ordered_epoch = cursor.epoch
        draw = random.Random(f"{self._label}/{deck.name}/{cursor.epoch}/{cursor.index}")
        text = deck.chunks[deck.order[cursor.index]]
        cursor.index += 1
        return text, draw

    def _encode(self, text: str, is_code: bool, draw: random.Random) -> list[Item]:
        """A plain document or, at its kind's rate and if they fit the window, infilling examples of it."""
        if draw.random() < (infill.CODE_RATE if is_code else infill.PROSE_RATE):
            made = [
                infill.transform(self._tokenizer, piece, is_code=is_code, draw=draw)
                for piece in infill.pieces(text, is_code=is_code, draw=draw)
            ]
            longest = self.stage.sequence_length - 1
            items = [Item(ids, whole=True, middle=middle) for ids, middle in made if len(ids) <= longest]
            if items:
                return items
        ids = (
            encode_with_seams(self._tokenizer, text, draw)
            if draw.random() < SEAM_RATE
            else encode(self._tokenizer, text)
        )
        return [Item([*ids, self._end], whole=False)]


def encode_with_seams(tokenizer: Tokenizer, text: str, draw: random.Random) -> list[int]:
    """Token ids of `text` encoded in parts that end in a space, as the text of a prompt that ends in one.

    Otherwise the model would never see how such a prompt goes on: the tokenizer
    leaves a word's leading space with the word.
    """
    ids: list[int] = []
    start = 0
    for place in sorted(draw.randrange(len(text)) for _ in range(1 + len(text) // CHARACTERS_PER_SEAM)):
        space = text.find(" ", max(place, start))
        if space < 0:
            break
        ids += encode(tokenizer, text[start : space + 1])
        start = space + 1
    return ids + encode(tokenizer, text[start:])
