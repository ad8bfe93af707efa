"""From a checkpoint to its Architecture."""

from __future__ import annotations

from onward.checkpoints.architecture import Architecture
from onward.checkpoints.checkpoint import Checkpoint
from onward.checkpoints.requirements import checked, require_computable
from onward.checkpoints.rope import with_long_positions
from onward.checkpoints.table import ARCHITECTURES
from onward.errors import CheckpointError


def architecture_of(checkpoint: Checkpoint, context_length: int | None = None) -> Architecture:
    """Return the architecture of a checkpoint, for contexts of up to so many tokens. What its record does not use
    (`declaration.Declaration`) is refused by name, never ignored.

    LongRoPE's models (arXiv 2402.13753) have two sets of positions: one for the context that they were trained for
    first, one for a longer context, which is worse within the first. Their authors change to the second one when a
    sequence becomes longer, which invalidates all keys before; here the longest context that was asked for decides, as
    in llama.cpp. None: the first one.

    Raises CheckpointError for an architecture that Onward does not compute.
    """
    parameters = checkpoint.parameters
    declared = ARCHITECTURES.get(parameters.architecture)
    if declared is None:
        raise CheckpointError(
            f"{parameters.where} has the architecture {parameters.architecture!r}, which Onward does not compute. It "
            f"computes {', '.join(sorted(ARCHITECTURES))}."
        )
    require_computable(parameters)
    return checked(with_long_positions(declared.decoder(checkpoint), checkpoint, context_length), checkpoint)
