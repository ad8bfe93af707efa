"""All that the engine asks of a runtime: token ids in, logits out.

A runtime implements `Model`. The engine decides which tokens are in which KV block; a runtime with paged attention uses
the block tables as they are, one that owns its cells keys them by block id and copies a block's cells in `copy_block`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepShape:
    """Facts of a runtime and its machine that decide which steps are worth scheduling. None changes a token."""

    block_tokens: int
    """Tokens in a KV block, the unit in which keys and values are shared."""
    min_prefill_tokens: int
    """Fewest prompt tokens per sequence and step, except for a prompt's end."""
    tile_tokens: int
    """Tokens that matrix kernels compute together: one token more costs nearly a whole tile."""
    max_prefill_tokens: int
    """Most prompt tokens per step when nothing decodes: larger steps are no faster and delay a cancel."""
    imperceptible_seconds: float
    """Step time that needs no shortening: nobody notices a pause of this length between two tokens."""

    def blocks_for(self, num_tokens: int) -> int:
        """KV blocks that hold so many tokens."""
        return -(-num_tokens // self.block_tokens)


Hook = Callable[[], None]


def nothing() -> None:
    """The hook that does nothing."""


@dataclass(slots=True)
class Row:
    """One sequence's part of a batch: `tokens` are evaluated at positions `start`, `start + 1`, …

    `blocks` is the sequence's block table (block ids in order), with room for `start + len(tokens)` tokens; the engine
    owns the list, a runtime must not modify it. `outputs` is the number of the row's LAST tokens whose logits are
    needed: 0 while a prompt is part-way through prefill, 1 for its end and for decode, up to `len(tokens)` when the
    prompt is scored.

    Several rows of a step may belong to one sequence, each with a single token, at successive positions and with
    the same block table: a token and drafts of those after it.

    `repeatable`: whether the row's bits must not depend on what else is in the step. Only the token of a choice that
    nobody can reproduce may do without.
    """

    sequence: int
    tokens: ReadOnly[int]
    start: int
    blocks: ReadOnly[int]
    outputs: int
    repeatable: bool = True


class Model(Protocol):
    """A decoder with a KV cache of `blocks` blocks of `shape.block_tokens` tokens. Used by the engine thread only."""

    vocab_size: int
    """Length of a row of logits; ids 0 … vocab_size - 1 may be evaluated and sampled."""
    context_length: int
    """Most tokens (prompt and completion together) a sequence may have."""
    blocks: int
    """How many KV blocks there are; ids 0 … blocks - 1."""
    shape: StepShape
    """Which steps suit this runtime on this machine."""

    def evaluate(self, rows: ReadOnly[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Evaluate all rows in one step and write their keys and values.

        Returns float32 [sum of row.outputs, vocab_size], in row order and position order: a view that is valid until
        the next call. `before_compute` must be called once, right before computation that releases the interpreter
        lock.

        A `repeatable` row yields the same bits whatever rows are beside it, and single-token rows of one sequence the
        same in one step as in a step each: a row sees what rows before it write. Rejected drafts leave keys and values
        behind, which a later row at their position overwrites. Raises RuntimeError when the runtime fails; the engine
        then crashes.
        """
        ...

    def copy_block(self, source: int, target: int) -> None:
        """Copy one KV block (copy-on-write of a partly filled block when a sequence forks)."""
        ...

    def close(self) -> None:
        """Free what the runtime holds. No call follows."""
        ...


class Vocabulary(Protocol):
    """What token ids spell. A pure look-up, thread-safe."""

    size: int
    end_tokens: frozenset[int]
    """Ids that end a text when sampled (EOS and the like)."""

    def token_bytes(self, token: int) -> bytes:
        """The exact bytes this id stands for inside a text; a special token's bytes are its literal."""
        ...

    def is_special(self, token: int) -> bool:
        """Whether this id is a control token, which `skip_special_tokens` hides from texts."""
        ...


class Tokenizer(Vocabulary, Protocol):
    """A vocabulary that also tokenizes text. Thread-safe; `encode` may take milliseconds."""

    bos_token: str | None
    eos_token: str | None
    """Literals of the start and end tokens, None where the model has none."""
    start_token: int | None
    """The id that stands for an empty prompt: the start token, else the end token (spec/completions §2.2)."""
    special_literals: tuple[str, ...]
    """The literals of all special tokens, in id order."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`. Literals of special tokens inside it become those tokens.

        With `add_special_tokens` the ids may begin with an implicit start token (see `implicit_prefix`).
        """
        ...

    def implicit_prefix(self, *, add_special_tokens: bool) -> int:
        """How many tokens `encode` puts before the text's own: 0, or 1 for an implicit start token."""
        ...

    def token_id(self, literal: str) -> int | None:
        """The id of an added or special token by its literal, None where the vocabulary lacks it."""
        ...
