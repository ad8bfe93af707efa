"""The interface of a runtime: token ids in, logits out.

A runtime implements `ModelRunner`. The engine decides which tokens are in which KV block. A runtime with paged
attention uses the block tables as they are; one that manages its own cells maps block ids to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class StepShape:
    """Properties of a runtime on this machine that the scheduler uses to choose steps. None of them changes a token."""

    block_tokens: int
    """Tokens per KV block, the unit in which keys and values are shared."""
    min_prefill_tokens: int
    """Fewest prompt tokens per sequence and step, except for the last chunk of a prompt."""
    tile_tokens: int
    """Tokens that matrix kernels compute together: one token more takes nearly as long as another tile."""
    max_prefill_tokens: int
    """Maximum of prompt tokens per step when nothing decodes: larger steps are not faster, and delay cancellations."""
    imperceptible_seconds: float
    """A pause between two tokens that users do not notice: steps need not be shorter."""
    states: int = 0
    """How many states of sequences there are, of a model whose sequences have one (`RecurrentModel`)."""
    change_fraction: float = 0.0
    """Extra time of a step with another number of rows than the one before, because kernels are prepared again, as a
    fraction of a step of one row, before it was measured."""
    max_draft_tokens: int = 96
    """Maximum draft tokens per step, of all sequences."""

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many KV blocks `num_tokens` tokens take."""
        return -(-num_tokens // self.block_tokens)


Hook = Callable[[], None]


def nothing() -> None:
    """Do nothing: the default hook."""


@dataclass(slots=True)
class Row:
    """One sequence's part of a batch: `tokens` are evaluated at positions `start`, `start + 1`, …

    `blocks` is the sequence's block table (block ids in order), with room for `start + len(tokens)` tokens; the engine
    owns the list, a runtime must not modify it. `outputs` is the number of the row's LAST tokens whose logits are
    needed: 0 while a prompt is part-way through prefill, 1 for its end and for decode, up to `len(tokens)` when the
    prompt is scored. `adapter`: the id of what changes the weights for this row (`AdapterLoader`); "": nothing.
    `state`: that of the sequence, of a `RecurrentModel`.

    Several rows of a step may belong to one sequence, each with a single token, at successive positions and with
    the same block table: tokens that are replayed, or a token and drafts of those after it, which are last.
    """

    sequence: int
    tokens: ReadOnly[int]
    start: int
    blocks: ReadOnly[int]
    outputs: int
    adapter: str = ""
    state: int = 0
    is_draft: bool = False


class ModelRunner(Protocol):
    """A decoder with a KV cache of `blocks` blocks of `shape.block_tokens` tokens. Used by the engine thread only."""

    vocab_size: int
    """Logits per row. Ids 0 … vocab_size - 1 may be evaluated and sampled."""
    context_length: int
    """Maximum tokens of a sequence, prompt and completion together."""
    blocks: int
    """Number of KV blocks. Their ids are 0 … blocks - 1."""
    shape: StepShape
    """Which steps are fast with this runtime on this machine."""

    def evaluate(self, rows: ReadOnly[Row], before_compute: Hook = nothing) -> NDArray[np.float32]:
        """Evaluate all rows in one step and write their keys and values.

        Returns float32 [sum of row.outputs, vocab_size], in row order and position order: a view that is valid until
        the next call. `before_compute` must be called once, right before computation that releases the interpreter
        lock.

        A row yields the same bits whatever other rows are in the step. Several single-token rows of one
        sequence yield the same bits as one per step would: a row attends to what the rows before it write. Keys and
        values of rejected drafts stay until a later row at their position overwrites them. Raises RuntimeError if the
        runtime fails; the engine crashes then.
        """
        ...

    def block_memory(self, block: int) -> ReadOnly[NDArray[np.uint8]]:
        """Return the keys and values of one KV block as bytes: contiguous views of the runtime's memory, uint8 [n],
        which have the same lengths for all blocks.

        The engine copies blocks by them, and writes and reads those that no row of a step has, also on other threads
        while a step is evaluated. They mean the same to every runtime with the same fingerprint.
        """
        ...

    def close(self) -> None:
        """Free the runtime's memory. No call follows."""
        ...


class RecurrentModel(ModelRunner, Protocol):
    """A model whose sequences have a state of a fixed size, too, not only keys and values. There are `shape.states` of
    them, 0 … states - 1; the engine decides which sequence has which.

    A state has taken in the positions before the next row of its sequence: `evaluate` adds those of its rows, in order,
    and RuntimeError is raised for rows that do not follow. A row at position 0 begins anew, whatever the state was. The
    newest row alone may be evaluated again: the state has it already.

    It does not take in drafts. Those of one step can be accepted by the next one, whose rows then follow them; if the
    sequence has no row in that step, the tokens are evaluated again.
    """

    def copy_state(self, source: int, target: int) -> None:
        """Copy a state to another one, without drafts. Between steps."""
        ...

    def state_memory(self, state: int) -> NDArray[np.uint8]:
        """Return a state as bytes: a view of the runtime's memory, uint8 [n], of the same length for all. It means the
        same to every runtime with the same fingerprint."""
        ...

    def set_state(self, state: int, content: NDArray[np.uint8], num_positions: int) -> None:
        """Replace a state by what `state_memory` returned of one that had taken in so many positions. Between steps."""
        ...


@runtime_checkable
class Predictor(ModelRunner, Protocol):
    """Layers of a model that predict further tokens from its hidden states, with keys and values of one sequence.

    `evaluate` takes rows of that sequence at positions that the model has computed, but for the newest one, with the
    model's block tables. The logits of a row are those of the token after it, as the model's are.
    """

    def extend(self, token: int) -> NDArray[np.float32]:
        """Return the logits after a token that follows the last one of `evaluate` or `extend`, and that the model has
        not computed: float32 [1, vocab_size], valid until the next call. The next call of `evaluate` replaces it."""
        ...


def state_copier(model: ModelRunner) -> Callable[[int, int], None] | None:
    """Return what copies states of a model; None if its sequences have none."""
    return cast(RecurrentModel, model).copy_state if model.shape.states else None


class AdapterLoader(Protocol):
    """Loads adapters of a model, which then computes rows of each with the same bits as alone. An
    adapter's id is a digest of its files."""

    def read(self, path: Path) -> tuple[str, object]:
        """Return the id of an adapter, and what `add` takes. Any thread; slow. Raises ModelFolderError for one that
        does not fit, MemoryTooSmall."""
        ...

    def add(self, adapter: str, read: object) -> None:
        """Have the model compute rows of an adapter, by its id. Engine thread, between steps."""
        ...

    def remove(self, adapter: str) -> None:
        """Free the memory of an adapter. Engine thread, between steps."""
        ...


def copy_block(model: ModelRunner, source: int, target: int) -> None:
    """Copy the keys and values of one KV block to another, for sequences that share part of a block."""
    for old, new in zip(model.block_memory(source), model.block_memory(target), strict=True):
        new[:] = old


class Vocabulary(Protocol):
    """The bytes of token ids. A pure lookup, thread-safe."""

    size: int
    end_tokens: frozenset[int]
    """Ids that end a text when sampled (EOS and the like)."""

    def token_bytes(self, token: int) -> bytes:
        """Return the exact bytes of a token inside a text; those of a special token are its literal."""
        ...

    def is_special(self, token: int) -> bool:
        """Whether the token is a control token, which `skip_special_tokens` removes from texts."""
        ...


class Tokenizer(Vocabulary, Protocol):
    """A vocabulary that also tokenizes text. Thread-safe; `encode` may take milliseconds."""

    bos_token: str | None
    eos_token: str | None
    """Literals of the start and end tokens, None where the model has none."""
    start_token: int | None
    """The id used for an empty prompt: the start token, or else the end token (behaviour §2.2)."""
    max_token_bytes: int
    """Bytes of the longest token: no text has fewer tokens than its bytes divided by this."""
    special_literals: tuple[str, ...]
    """The literals of all special tokens, in id order."""
    suppressed_tokens: frozenset[int]
    """Ids that are never generated, whatever their logits are."""
    infill_tokens: Mapping[str, int]
    """Ids of infill tokens that the model's files state: `prefix`, `suffix`, `middle`, `padding`, `repository`, `file`.
    Empty where only their texts say what they are for."""

    has_process: bool
    """Whether `encode` waits for a process of its own, which is for threads other than an event loop's."""
    chat_template: str
    """The program in Jinja2 that makes a prompt of a conversation, "" where the model's files have none. It is a
    stranger's: `templates.render` runs it, nothing else does."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`. Literals of special tokens inside it become those tokens.

        With `add_special_tokens` the ids may begin with an implicit start token (see `implicit_prefix`). Raises
        TextNotEncodable for a text that the tokenizer cannot encode.
        """
        ...

    def implicit_prefix(self, *, add_special_tokens: bool) -> int:
        """Return how many tokens `encode` adds before those of the text: 0, or 1 for an implicit start token."""
        ...

    def token_id(self, literal: str) -> int | None:
        """Return the id of an added or special token, None if the vocabulary does not have it."""
        ...
