"""How one setting is spelled, parsed and described."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, dataclass, field
from typing import Any, Literal, TypeVar

from onward import values
from onward.errors import SetupError

T = TypeVar("T")
SettingGroup = Literal["Model", "Network", "Security", "Limits", "Team", "Performance", "Logging"]
GROUPS: tuple[SettingGroup, ...] = ("Model", "Network", "Security", "Limits", "Team", "Performance", "Logging")


@dataclass(frozen=True, slots=True)
class Option:
    """How one field of Settings is spelled and parsed, in all places where it can be set."""

    name: str
    flag: str
    environment: str
    group: SettingGroup
    help: str
    metavar: str
    parser: Callable[[str], Any]
    """Converts text to the value. Raises ValueError with the rule that the text breaks ("must be …")."""
    default: Any
    is_repeatable: bool
    """Whether the value is a tuple. In the environment its items are separated by commas."""
    is_boolean: bool
    is_secret: bool
    is_server_only: bool
    """Whether the value only affects `onward serve`, so that the Python API's keyword arguments do not include it."""

    def parse(self, raw: str | list[str], origin: str) -> Any:
        """Return the value of `raw`, which was set by `origin`.

        Raises SetupError with the value (unless it is secret), the place where it was set, and the rule.
        """
        if isinstance(raw, list):
            return tuple(self._parse_one(item, origin) for item in raw)
        return self._parse_one(raw, origin)

    def _parse_one(self, raw: str, origin: str) -> Any:
        try:
            return self.parser(raw)
        except ValueError as problem:
            shown = "(hidden)" if self.is_secret else repr(raw)
            place = origin if origin in (self.flag, self.environment) else f"{self.name} in {origin}"
            raise SetupError(f"Invalid value {shown} for {place}: {problem}.") from None


def option(
    default: T,
    group: SettingGroup,
    parser: Callable[[str], Any],
    help: str,
    *,
    metavar: str = "",
    is_repeatable: bool = False,
    is_secret: bool = False,
    is_server_only: bool = False,
) -> T:
    """Return a field of Settings. Those of the groups Network, Security and Team are server-only without saying so."""
    metadata: dict[str, object] = {"group": group, "parser": parser, "help": help, "metavar": metavar}
    metadata |= {"is_repeatable": is_repeatable, "is_secret": is_secret}
    metadata["is_server_only"] = is_server_only or group in ("Network", "Security", "Team")
    declared: T = field(default=default, metadata=metadata)
    return declared


def as_option(declared: Field[Any]) -> Option:
    """Return the option that a field of Settings declares."""
    metadata = declared.metadata
    choices: tuple[str, ...] = getattr(metadata["parser"], "choices", ())
    return Option(
        name=declared.name,
        flag="--" + declared.name.replace("_", "-"),
        environment="ONWARD_" + declared.name.upper(),
        group=metadata["group"],
        help=metadata["help"],
        metavar=metadata["metavar"] or "|".join(choices),
        parser=metadata["parser"],
        default=declared.default,
        is_repeatable=metadata["is_repeatable"],
        is_boolean=metadata["parser"] is values.boolean,
        is_secret=metadata["is_secret"],
        is_server_only=metadata["is_server_only"],
    )
