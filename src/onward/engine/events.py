"""What the engine tells, a closed set. Events of one step are delivered together."""

from __future__ import annotations

from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass
from typing import Literal, NamedTuple

from onward.sampling.outputs import Sampled
from onward.text.assembler import TokenRecord

Ending = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A job's prompt has been read: sent once a job, before any Piece.

    `cached` tokens of it were not computed again. `scores` has an entry a prompt token (None for the first)
    when the job asked for them.
    """

    job: int
    cached: int
    scores: ReadOnly[Sampled | None] | None


class Piece(NamedTuple):
    """Part of one choice: text that may be shown, with its records (either may be empty).

    `billed` counts the choice's completion tokens so far. `ending` is set on the last piece of the choice.
    `foretold` and `mistaken` count the tokens drafted from the job's prediction that were drawn so far, and those
    evaluated that were not: among the pieces of one step `mistaken` still falls, the step's last one has it right.
    """

    job: int
    choice: int
    text: str
    records: ReadOnly[TokenRecord]
    billed: int
    ending: Ending | None
    foretold: int = 0
    mistaken: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The job ended without its choices: the engine broke or was stopped. `reason` is for the log."""

    job: int
    reason: str


Event = Prefilled | Piece | Failed
