"""One model on a disk, whatever its format: which files it has, what they state, what is wrong with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from onward.engine.model import Tokenizer

Progress = Callable[[str], None]
"""Receives a sentence for the user at each stage of slow work."""


@dataclass(frozen=True)
class ModelFiles(ABC):
    """The files of a model, complete or not. Each subclass is a format, an entry of `formats.FORMATS`.

    Only `load_tokenizer` may be slow or import libraries: shell completion and `onward doctor` call everything else.
    """

    path: Path
    """A folder or a single file."""

    format: ClassVar[str]
    """For sentences: "OpenVINO IR"."""
    is_listed: ClassVar[bool] = True
    """Whether messages name it among the formats that users have models in."""
    patterns: ClassVar[tuple[str, ...]] = ()
    """Glob patterns of the files to download from a hub repository; empty: never on the hub."""
    packages: ClassVar[tuple[str, ...]] = ("tokenizers",)
    """Python distributions that its tokenizer needs, for `onward doctor`."""
    loading_only_files: ClassVar[tuple[str, ...]] = ("tokenizers.",)
    """Name prefixes of mapped files that serving hardly reads once the tokenizer is loaded: a process of its own drops
    their pages."""

    @classmethod
    @abstractmethod
    def matches(cls, path: Path) -> bool:
        """Return whether `path` looks like a model of this format, complete or not."""

    @abstractmethod
    def paths(self) -> list[Path]:
        """Return the files that exist, the one that dates the model first; [] where `matches` no longer holds."""

    @abstractmethod
    def problems(self) -> list[str]:
        """Return what keeps the model from being loaded, each a sentence that says what to do.

        Looks at files only; whether the weights can be computed is checked by loading them.
        """

    @abstractmethod
    def facts(self) -> dict[str, int | str]:
        """Return what the files of a model without problems state. Usual keys: `context_length` and `vocabulary` in
        tokens, `kind` (the architecture).
        """

    def bytes_per_token(self) -> int:
        """Return about how many bytes of the files are read to compute a token: all, but of a mixture of experts only
        the share of the parameters that a token uses. Of a model without problems."""
        size, facts = sum(path.stat().st_size for path in self.paths()), self.facts()
        total, active = facts.get("parameters"), facts.get("active_parameters")
        return size * active // total if isinstance(total, int) and isinstance(active, int) and total else size

    def listed_files(self) -> list[str]:
        """Return the names of the files that the model's own list of files names; empty where there is no list. They
        are downloaded in addition to those of `patterns`."""
        return []

    def configuration_problem(self) -> str | None:
        """Return what keeps the model from being computed, as far as its configuration shows it, None if nothing was
        found: a reason not to download its weights."""
        return None

    def notes(self) -> list[str]:
        """Return sentences for the operator about a model without problems: what its files state and nothing uses, and
        what was assumed. Reads no weights that are not needed for it."""
        return []

    def release(self) -> None:  # noqa: B027 - most formats keep nothing
        """Free what was read of the files and is kept for further questions. It is read again when it is asked for."""

    @classmethod
    def conversion(cls, source: str) -> str:
        """Return the command that converts `source`, a folder or hub id in another format; "" if there is none."""
        return ""

    @abstractmethod
    def load_tokenizer(self, cache_dir: Path | None = None) -> Tokenizer:
        """Load the tokenizer, at any time and on any thread. Raises ModelFolderError.

        `cache_dir`: where what took long may be kept for the next start; None: nowhere.
        """
