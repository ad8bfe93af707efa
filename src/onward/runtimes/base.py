"""What a runtime is to the rest of Onward: a model format that describes, checks and loads what lies at a path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from onward.engine.model import ModelRunner, Tokenizer
    from onward.runtimes.options import RuntimeOptions

Progress = Callable[[str], None]
"""Receives a sentence for people at each stage of something slow."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, ready for its first step. The caller owns it and closes `model`.

    The step shape is the model's own (`model.shape`).
    """

    model: ModelRunner
    fingerprint: str
    """Changes with whatever may change results: weights, runtime, processor, precision."""
    notes: tuple[str, ...] = ()
    """Sentences for the operator: what was lowered to fit, what was assumed."""


class ModelFormat(Protocol):
    """One kind of model on disk and the runtime that computes it. Stateless; an entry of `formats.MODEL_FORMATS`.

    `path` is a folder or a single file. Only `load` and `load_tokenizer` may be slow or import the runtime: shell
    completion and `onward doctor` call everything else.
    """

    name: str
    """For sentences: "OpenVINO IR"."""
    is_listed: bool
    """Whether messages name it among the formats that users have models in."""
    patterns: tuple[str, ...]
    """Glob patterns of the files to download from a hub repository; empty: never on the hub."""
    takes_adapters: bool
    """Whether `RuntimeOptions.adapter` acts."""
    packages: tuple[str, ...]
    """Python distributions that loading needs, for `onward doctor`."""
    loading_only_files: tuple[str, ...]
    """Name prefixes of mapped files that serving hardly reads once a model is loaded: a process of its own
    drops their pages."""

    def matches(self, path: Path) -> bool:
        """Return whether `path` looks like a model of this format, complete or not."""
        ...

    def files(self, path: Path) -> list[Path]:
        """Return the files of the model that exist, the one that dates the model first. Empty for other formats."""
        ...

    def problems(self, path: Path) -> list[str]:
        """Return what keeps a matching `path` from being loaded, each a sentence that says what to do.

        Looks at files only; whether the weights can be computed is checked by `load`.
        """
        ...

    def facts(self, path: Path) -> dict[str, int | str]:
        """Return what the files state about a model without problems.

        Usual keys: `context_length` and `vocabulary` in tokens, `kind` (the architecture), `runtime` and
        `runtime_reason` (what computes it by default, and why).
        """
        ...

    def listed_files(self, path: Path) -> list[str]:
        """Return the names of the files that the model's own list of files names; empty where there is no list. They
        are downloaded beside those of `patterns`."""
        ...

    def notes(self, path: Path) -> list[str]:
        """Return sentences for the operator about a model without problems: what its files state and nothing uses, and
        what was assumed. Reads no weights that are not needed for it."""
        ...

    def conversion(self, source: str) -> str:
        """Return the command that converts `source`, a folder or hub id in another format; "" if there is none."""
        ...

    def load(self, path: Path, options: RuntimeOptions, progress: Progress) -> LoadedModel:
        """Load the model at `path`, without its tokenizer. Slow; blocks.

        Raises ModelFolderError (files, graph), MemoryTooSmall (KV cache), SetupError (options that do not fit).
        """
        ...

    def load_tokenizer(self, path: Path, cache_dir: Path | None = None) -> Tokenizer:
        """Load the tokenizer, at any time and on any thread. Raises ModelFolderError.

        `cache_dir`: where what took long may be kept for the next start; None: nowhere.
        """
        ...
