"""The endless, seeded, resumable stream of training rows.

There is no random state: every random choice is a function of (seed, stage, source, epoch, index), so the position in
the data is a few counters and the tokens carried over from the last row.
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

MAX_WAITING_ITEMS = 64
IGNORED_LABEL = -100
SEAM_RATE = 0.4
CHARACTERS_PER_SEAM = 200
MIDDLE_WEIGHT = 3.0
"""Weight in the loss of the tokens of a middle, because there are few of them."""


@dataclass
class Item:
    """One encoded document. `whole` ones (infilling) must not be split across rows.

    The last `middle` tokens are the middle of an infilling example. A document is `fresh` until its start was used.
    """

    ids: list[int]
    whole: bool
    fresh: bool = True
    middle: int = 0


@dataclass
class Cursor:
    """The position in one source: the epoch, the next chunk, the tokens used so far."""

    epoch: int = 0
    index: int = 0
    served: int = 0


@dataclass
class _Deck:
    """The chunks of one source and their order in the current epoch."""

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
        """Return the position in the data as plain values."""
        return {
            "cursors": {name: vars(cursor).copy() for name, cursor in self._cursors.items()},
            "waiting": [vars(item).copy() for item in self._waiting],
            "rows": self._rows,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue exactly at the position of `state`."""
        self._cursors = {name: Cursor(**cursor) for name, cursor in state["cursors"].items()}
        self._waiting = [Item(**item) for item in state["waiting"]]
        self._rows = state["rows"]

    def served(self) -> dict[str, int]:
        """Return the tokens used so far of each source."""
        return {name: cursor.served for name, cursor in self._cursors.items()}

    def rows(self, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return inputs (int64), labels (int64) and loss weights (float32), each [count, sequence_length].

        The infilling markers and the padding have the label -100: they are inputs but never predicted, so that a text
        started from the end of text alone is not an infilling example.
        """
        rows = [self._row() for _ in range(count)]
        table = np.array([row for row, _ in rows], dtype=np.int64)
        weights = np.array([row_weights for _, row_weights in rows], dtype=np.float32)
        labels = table[:, 1:].copy()
        labels[np.isin(labels, self._never_predicted)] = IGNORED_LABEL
        return table[:, :-1], labels, weights[:, 1:]

    def _row(self) -> tuple[list[int], list[float]]:
        """Return the ids and loss weights of one row: whole items only where they fit, plain ones split at its end."""
        width = self.stage.sequence_length + 1
        row: list[int] = []
        weights: list[float] = []
        while len(row) < width and len(self._waiting) <= MAX_WAITING_ITEMS:
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
        """Return a waiting infilling item that fits, else a waiting plain one, else the first new one that fits."""
        fitting = [index for index, item in enumerate(self._waiting) if self._fits(item, room)]
        if fitting:
            return self._waiting.pop(max(fitting, key=lambda index: self._waiting[index].whole))
        while True:
            item, *others = self._next_items()
            self._waiting += others
            if self._fits(item, room) or len(self._waiting) > MAX_WAITING_ITEMS:
                return item
            self._waiting.append(item)

    @staticmethod
    def _fits(item: Item, room: int) -> bool:
        return not item.whole or len(item.ids) < room

    def _next_items(self) -> list[Item]:
        """Return the next document of the source that is furthest behind its share, as one or more items."""
        total = sum(cursor.served for cursor in self._cursors.values()) + 1
        shares = sum(self.stage.mixture.values())

        def deficit(name: str) -> float:
            return self.stage.mixture[name] / shares * total - self._cursors[name].served

        name = max(self._cursors, key=deficit)
        text, rng = self._next_chunk(self._decks[name], self._cursors[name])
        items = self._encode(text, self._decks[name].is_code, rng)
        self._cursors[name].served += sum(len(item.ids) for item in items)
        return items

    def _next_chunk(self, deck: _Deck, cursor: Cursor) -> tuple[str, random.Random]:
        """Return the next chunk of a deck, and the random generator that belongs to it."""
        if cursor.index >= len(deck.chunks):
            cursor.epoch, cursor.index = cursor.epoch + 1, 0
        if deck.ordered_epoch != cursor.epoch:
            deck.order = list(range(len(deck.chunks)))
            random.Random(f"{self._label}/{deck.name}/{cursor.epoch}").shuffle(deck.order)
            deck.ordered_epoch = cursor.epoch
        rng = random.Random(f"{self._label}/{deck.name}/{cursor.epoch}/{cursor.index}")
        text = deck.chunks[deck.order[cursor.index]]
        cursor.index += 1
        return text, rng

    def _encode(self, text: str, is_code: bool, rng: random.Random) -> list[Item]:
        """Return a plain document or, at the rate of its kind and if they fit the window, infilling examples of it."""
        if rng.random() < (infill.CODE_RATE if is_code else infill.PROSE_RATE):
            examples = [
                infill.transform(self._tokenizer, excerpt, is_code=is_code, rng=rng)
                for excerpt in infill.excerpts(text, is_code=is_code, rng=rng)
            ]
            longest = self.stage.sequence_length - 1
            items = [Item(ids, whole=True, middle=middle) for ids, middle in examples if len(ids) <= longest]
            if items:
                return items
        ids = (
            encode_with_seams(self._tokenizer, text, rng) if rng.random() < SEAM_RATE else encode(self._tokenizer, text)
        )
        return [Item([*ids, self._end], whole=False)]


def encode_with_seams(tokenizer: Tokenizer, text: str, rng: random.Random) -> list[int]:
    """Return token ids of `text`, encoded in parts that end in a space, as in prompts that end in one.

    Otherwise the model would never see how such a prompt continues, because the tokenizer keeps the leading space of a
    word with the word.
    """
    ids: list[int] = []
    start = 0
    for position in sorted(rng.randrange(len(text)) for _ in range(1 + len(text) // CHARACTERS_PER_SEAM)):
        space = text.find(" ", max(position, start))
        if space < 0:
            break
        ids += encode(tokenizer, text[start : space + 1])
        start = space + 1
    return ids + encode(tokenizer, text[start:])
