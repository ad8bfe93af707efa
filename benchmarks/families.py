"""What both servers are compared on: GGUF files that Onward and llama-server read as they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import random_model
from benchmarks.peer_build import PEERS, PeerError
from onward.checkpoints.read import read_checkpoint
from onward.errors import CheckpointError
from onward.models.resolve import built_in_folder

MODELS = PEERS / "models"
STORYTELLER = built_in_folder("storyteller") / "storyteller.gguf"
OTHER_RULE = ("--override-kv", "tokenizer.ggml.pre=str:smollm")
"""llama-server does not know how storyteller cuts text. Prompts are token ids, so another rule serves."""


@dataclass(frozen=True, slots=True)
class Family:
    """One network in several precisions.

    `files` maps a type of weights to its file. `clients` are the default numbers of clients, `waves` the requests per
    client and round for each, `rounds` the measured rounds. `peer_flags` are llama-server's.
    """

    name: str
    vocabulary: int
    files: dict[str, Path]
    clients: tuple[int, ...] = (1, 8, 32)
    waves: dict[int, int] | None = None
    rounds: int = 5
    peer_flags: tuple[str, ...] = ()

    def only(self, types: Iterable[str] | None) -> Family:
        """Return the family with these types only; all if None. Raises PeerError for one that it does not have."""
        if types is None:
            return self
        kept = {name: path for name, path in self.files.items() if name in set(types)}
        if not kept or len(kept) < len(set(types)):
            raise PeerError(f"{self.name} has {', '.join(self.files)}. Select at least one of them.")
        return replace(self, files=kept)

    def waves_for(self, clients: int) -> int:
        """Return the default requests per client and round."""
        return (self.waves or {1: 4}).get(clients, 2)


def families(models: Path = MODELS) -> dict[str, Family]:
    """Return all families by name, whether or not their files exist."""
    return {
        "storyteller": Family(
            "storyteller",
            8192,
            {"Q8_0": STORYTELLER},
            (1, 8, 32, 64),
            {1: 24, 8: 8, 32: 4, 64: 4},
            7,
            OTHER_RULE,
        ),
        "qwen05b": Family(
            "qwen05b",
            random_model.VOCAB_SIZE,
            {name: models / f"qwen05b-{name}.gguf" for name in ("Q8_0", "Q4_0")},
            waves={1: 4, 8: 2, 32: 3},
        ),
    }


def family_of(gguf: Path) -> Family:
    """Return the family of one file. Raises PeerError if it cannot be read."""
    try:
        tokens = read_checkpoint(gguf).num_tokens
    except CheckpointError as problem:
        raise PeerError(str(problem)) from None
    return Family(gguf.stem, tokens or 0, {"file": gguf})


def select(names: Iterable[str], models: Path) -> list[Family]:
    """Return the families of these names. Raises PeerError, with the commands that create them, if files are
    missing."""
    known = families(models)
    found = [known[name] for name in names]
    missing = [(kind, path) for family in found for kind, path in family.files.items() if not path.exists()]
    if missing:
        commands = "; ".join(f"python -m benchmarks.random_model --type {kind} {path}" for kind, path in missing)
        raise PeerError(f"Files are missing. Create them with `{commands}`.")
    return found
