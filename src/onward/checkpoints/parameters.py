"""What a checkpoint states about its model, with checks: numbers, texts and lists by GGUF's names without the
architecture's prefix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from onward.checkpoints.cursor import Value
from onward.errors import CheckpointError

MAX_NUMBER = 1 << 31


class Parameters:
    """The metadata of one model. `where` names the file in messages."""

    def __init__(self, metadata: Mapping[str, Value], where: str) -> None:
        """Raises CheckpointError if no architecture is stated."""
        self.where = where
        self.metadata = metadata
        self.architecture = self.text("general.architecture", whole_name=True)

    def integer(self, name: str, default: int | None = None, *, minimum: int = 0) -> int:
        """Return a whole number from `minimum` to 2**31. Raises CheckpointError for anything else, and for nothing."""
        value = self._get(name, default)
        if type(value) is not int or not minimum <= value <= MAX_NUMBER:
            raise self._wrong(name, value)
        return value

    def real(self, name: str, default: float | None = None) -> float:
        """Return a finite number. Raises CheckpointError as `integer` does."""
        value = self._get(name, default)
        if not isinstance(value, int | float) or not -1e30 < value < 1e30:
            raise self._wrong(name, value)
        return float(value)

    def text(self, name: str, default: str | None = None, *, whole_name: bool = False) -> str:
        """Return a text. `whole_name`: the name has no architecture's prefix. Raises CheckpointError."""
        value = self.metadata.get(name, default) if whole_name else self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value)
        return value

    def switch(self, name: str, default: bool) -> bool:
        """Return whether something is on. Raises CheckpointError as `integer` does."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value)
        return value

    def switches(self, name: str) -> list[bool] | None:
        """Return a list of what is on, by layer, None if there is none. Raises CheckpointError for other values."""
        return cast("list[bool] | None", self.list_of(bool, f"{self.architecture}.{name}"))

    def has(self, name: str) -> bool:
        """Return whether the name is stated."""
        return f"{self.architecture}.{name}" in self.metadata

    def list_of(self, kind: type, name: str) -> list[object] | None:
        """Return a list from the whole metadata, None if there is none. Raises CheckpointError for other values."""
        value = self.metadata.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise self._wrong(name, "a list of something else")
        return cast("list[object]", value)

    def whole(self, name: str) -> Value | None:
        """Return a value of any kind by its whole name, None if there is none."""
        return self.metadata.get(name)

    def _get(self, name: str, default: object) -> object:
        return self.metadata.get(f"{self.architecture}.{name}", default)

    def _wrong(self, name: str, value: object) -> CheckpointError:
        if value is None:
            return CheckpointError(f"{self.where} does not state {name!r}: it is not a complete model.")
        return CheckpointError(
            f"{self.where} states {str(value)[:80]!r} as {name!r}, with which Onward cannot compute."
        )
