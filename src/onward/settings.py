"""One frozen `Settings`, declared once for flags, ONWARD_* environment, onward.toml and the reference page.

Precedence: flags > environment > file > defaults. `resolve` also tells where each value came from.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from onward import values
from onward.errors import SetupError
from onward.values import ContentFilterSetting

T = TypeVar("T")
Group = Literal["Model", "Network", "Security", "Limits", "Performance", "Logging"]
GROUPS: tuple[Group, ...] = ("Model", "Network", "Security", "Limits", "Performance", "Logging")
CONFIG_ENVIRONMENT = "ONWARD_CONFIG"
OTHER_VARIABLES = frozenset({CONFIG_ENVIRONMENT, "ONWARD_BASE_URL", "ONWARD_ORG_ID", "ONWARD_PROJECT_ID"})
"""Variables that are no settings: the file's place, and what the command line asks other servers with."""

log = logging.getLogger("onward.settings")


@dataclass(frozen=True, slots=True)
class Option:
    """How one field of Settings is spelled and read, everywhere it may be given."""

    name: str
    flag: str
    environment: str
    group: Group
    help: str
    metavar: str
    parse: Callable[[str], Any]
    """Text to value. Raises ValueError whose words say what is allowed."""
    default: Any
    many: bool
    """Repeatable: the value is a tuple; in the environment commas separate."""
    switch: bool
    secret: bool

    def read(self, raw: str | list[str], origin: str) -> Any:
        """The value of `raw`, given at `origin`. Raises SetupError that names value, origin and the rule."""
        if isinstance(raw, list):
            return tuple(self._read_one(item, origin) for item in raw)
        return self._read_one(raw, origin)

    def _read_one(self, raw: str, origin: str) -> Any:
        try:
            return self.parse(raw)
        except ValueError as problem:
            shown = "(hidden)" if self.secret else repr(raw)
            raise SetupError(f"{shown} from {origin} does not work: {problem}.") from None


def _option(
    default: T,
    group: Group,
    parse: Callable[[str], Any],
    help: str,
    *,
    metavar: str = "",
    many: bool = False,
    secret: bool = False,
) -> T:
    metadata: dict[str, object] = {"group": group, "parse": parse, "help": help, "metavar": metavar}
    metadata |= {"many": many, "secret": secret}
    made: T = field(default=default, metadata=metadata)
    return made


def cache_folder() -> Path:
    """Where downloads and compiled models are kept: $XDG_CACHE_HOME/onward, else ~/.cache/onward."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onward"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All that an operator can choose. Sizes are in bytes, times in seconds."""

    model: tuple[str, ...] = _option(
        ("storyteller",), "Model", values.text,
        "Model to serve: a built-in name, a folder, or a hub id; repeatable, the first is the default one.",
        metavar="NAME_OR_PATH", many=True,
    )  # fmt: skip
    alias: tuple[tuple[str, str], ...] = _option(
        (), "Model", values.pair, "Another name under which a model answers; repeatable.",
        metavar="NAME=MODEL", many=True,
    )  # fmt: skip
    context_length: int = _option(
        0, "Model", values.whole(0),
        "Most tokens of prompt and completion together; 0: as many as the model was made for.",
        metavar="TOKENS",
    )  # fmt: skip
    cache_dir: Path = _option(  # noqa: RUF009
        cache_folder(), "Model", values.path, "Folder for downloaded and compiled models.", metavar="PATH"
    )
    host: str = _option(
        "127.0.0.1", "Network", values.text,
        "Address to listen on. Any other than a loopback address needs a key, or --no-auth.", metavar="HOST",
    )  # fmt: skip
    port: int = _option(8000, "Network", values.whole(0, 65535), "Port to listen on; 0: any free one.", metavar="PORT")
    keep_alive: float = _option(
        15.0, "Network", values.seconds,
        "Silence in a stream after which a comment line keeps proxies and clients waiting; 0: never.",
        metavar="SECONDS",
    )  # fmt: skip
    drain: float = _option(
        30.0, "Network", values.seconds, "How long running requests may go on after Ctrl-C, SIGTERM or SIGHUP.",
        metavar="SECONDS",
    )  # fmt: skip
    api_key: tuple[str, ...] = _option(
        (), "Security", values.key,
        "Key that clients must present; repeatable. Others on the machine see flags: prefer --api-key-file.",
        metavar="KEY", many=True, secret=True,
    )  # fmt: skip
    api_key_file: Path | None = _option(  # noqa: RUF009
        None, "Security", values.path, "File of keys, one a line; lines that begin with # are comments.",
        metavar="PATH",
    )  # fmt: skip
    no_auth: bool = _option(False, "Security", values.truth, "Ask nobody for a key, whatever the address.")
    profile: Literal["strict", "default", "lenient"] = _option(
        "default", "Limits", values.one_of("strict", "default", "lenient"),
        "strict: OpenAI's limits to the letter. default: also the extras that real clients send. "
        "lenient: unknown fields and any number of stops pass too, the model may be missing, and a lone model answers "
        "to every name.",
    )  # fmt: skip
    max_body: int = _option(
        32_000_000, "Limits", values.size, "Largest request body; over it the answer is 413.", metavar="SIZE"
    )
    max_waiting: int = _option(
        1024, "Limits", values.whole(0),
        "Sequences that may wait for a place in the batch, by default 16 full batches; "
        "over it the answer is 503 with Retry-After.", metavar="SEQUENCES",
    )  # fmt: skip
    max_parallel: int = _option(
        2048, "Limits", values.whole(1),
        "Most choices (prompts x candidates) that one request may ask for; 8 times as many where `max_tokens` is 0.",
        metavar="CHOICES",
    )  # fmt: skip
    content_filter: tuple[ContentFilterSetting, ...] = _option(
        (), "Limits", values.content_filter,
        "Text that must not leave the server, a JSON object; repeatable, and in the file [[content_filter]].",
        metavar="JSON", many=True,
    )  # fmt: skip
    max_rows: int = _option(
        64, "Performance", values.whole(1), "Sequences evaluated together in one step.", metavar="SEQUENCES"
    )
    kv_memory: int | None = _option(
        None, "Performance", values.size_or_auto,
        "Memory for the KV cache; auto: a share of what is free.", metavar="SIZE|auto",
    )  # fmt: skip
    threads: int = _option(
        0, "Performance", values.whole(0), "Threads that evaluate the model; 0: one a core.", metavar="N"
    )
    precision: Literal["fast", "exact"] = _option(
        "fast", "Performance", values.one_of("fast", "exact"),
        "fast: what the processor does best. exact: 32-bit arithmetic.",
    )  # fmt: skip
    prefix_cache: bool = _option(
        True, "Performance", values.truth, "Keep evaluated prompts for requests that begin the same way."
    )
    speculation: Literal["auto", "off"] = _option(
        "auto", "Performance", values.one_of("auto", "off"),
        "auto: draft tokens from a request's prediction and from text that repeats, to evaluate several at once. "
        "No token changes by it: off is only for measuring.",
    )  # fmt: skip
    log_level: Literal["debug", "info", "warning", "error"] = _option(
        "info", "Logging", values.one_of("debug", "info", "warning", "error"), "Least severe messages to log."
    )
    access_log: bool = _option(True, "Logging", values.truth, "Log one line a request.")

    def __repr__(self) -> str:
        """Without secrets: keys are counted, not shown."""
        shown = (f"{one.name}={_masked(one, getattr(self, one.name))!r}" for one in options())
        return f"Settings({', '.join(shown)})"


def _masked(option: Option, value: Any) -> Any:
    return f"<{len(value)} hidden>" if option.secret and value else value


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings and, by field name, where each value came from: a flag, a variable, a file or "default"."""

    settings: Settings
    origins: Mapping[str, str]


@cache
def options() -> tuple[Option, ...]:
    """Every setting, in the order of its declaration."""
    return tuple(_as_option(declared) for declared in fields(Settings))


def _as_option(declared: Field[Any]) -> Option:
    metadata = declared.metadata
    choices: tuple[str, ...] = getattr(metadata["parse"], "choices", ())
    return Option(
        name=declared.name,
        flag="--" + declared.name.replace("_", "-"),
        environment="ONWARD_" + declared.name.upper(),
        group=metadata["group"],
        help=metadata["help"],
        metavar=metadata["metavar"] or "|".join(choices),
        parse=metadata["parse"],
        default=declared.default,
        many=metadata["many"],
        switch=metadata["parse"] is values.truth,
        secret=metadata["secret"],
    )


def resolve(
    flags: Mapping[str, str | list[str]] | None = None,
    *,
    keywords: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Resolved:
    """Settle every setting. `flags` holds raw texts by field name, `keywords` values as a file would have them
    (the Python API's), `config` is the file of --config.

    Reads the environment (`os.environ` where `environ` is None) and one file. Raises SetupError.
    """
    environ = os.environ if environ is None else environ
    if config is None and environ.get(CONFIG_ENVIRONMENT):
        config = Path(environ[CONFIG_ENVIRONMENT])
    given = _from_file(config, environ) | _from_environment(environ) | _from_flags(flags or {})
    given |= _from_keywords(keywords or {})
    by_name = {option.name: option for option in options()}
    chosen = {name: by_name[name].read(raw, origin) for name, (raw, origin) in given.items()}
    settings = Settings(**chosen)
    _check_together(settings)
    origins = {name: given[name][1] if name in given else "default" for name in by_name}
    return Resolved(settings, origins)


def _warn_of_misspelt(environ: Mapping[str, str]) -> None:
    known = [option.environment for option in options()]
    for name in environ:
        if name.startswith("ONWARD_") and name not in {*known, *OTHER_VARIABLES}:
            close = difflib.get_close_matches(name, known, n=1)
            log.warning("%s is no setting of Onward%s", name, f"; did you mean {close[0]}?" if close else ".")


Given = dict[str, tuple[str | list[str], str]]


def _from_flags(flags: Mapping[str, str | list[str]]) -> Given:
    return {option.name: (flags[option.name], option.flag) for option in options() if option.name in flags}


def _from_environment(environ: Mapping[str, str]) -> Given:
    found: Given = {}
    _warn_of_misspelt(environ)
    for option in options():
        if raw := environ.get(option.environment):
            found[option.name] = (_parts(raw) if option.many else raw, option.environment)
    return found


def _as_text(item: object) -> str:
    """One of several values, as a flag would carry it."""
    return json.dumps(item) if isinstance(item, dict) else str(item)


def _parts(raw: str) -> list[str]:
    """The values in a variable: between commas, or JSON: one object, or an array."""
    if raw.lstrip().startswith(("[", "{")):
        try:
            value = json.loads(raw)
        except json.JSONDecodeError:
            pass
        else:
            return list(map(_as_text, value if isinstance(value, list) else [value]))
    return [part.strip() for part in raw.split(",") if part.strip()]


def _config_places(environ: Mapping[str, str]) -> Iterator[Path]:
    yield Path("onward.toml")
    home = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    yield Path(home) / "onward" / "onward.toml"


def _from_file(config: Path | None, environ: Mapping[str, str]) -> Given:
    path = config or next((place for place in _config_places(environ) if place.is_file()), None)
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise SetupError(f"The settings file {path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError as problem:
        words = f"{problem.reason} at byte {problem.start}"
        raise SetupError(f"The settings file {path} is not UTF-8 text ({words}).") from None
    except tomllib.TOMLDecodeError as problem:
        raise SetupError(f"The settings file {path} is not valid TOML: {problem}.") from None
    return _from_table(table, str(path), lambda name: str(path))


def _from_table(table: Mapping[str, object], place: str, origin: Callable[[str], str]) -> Given:
    """Values by field name; None means the default. Raises SetupError for a name that is no setting."""
    by_name = {option.name: option for option in options()}
    found: Given = {}
    for key, value in table.items():
        if key not in by_name:
            raise SetupError(f"{place} has an unknown setting {key!r}{_suggestion(key, list(by_name))}")
        if value is not None:
            found[key] = (_table_value(by_name[key], value, place), origin(key))
    return found


def _from_keywords(keywords: Mapping[str, object]) -> Given:
    """As `_from_table`, for a program that serves nobody. Raises SetupError for what would have no effect there."""
    of_servers = {option.name for option in options() if option.group in ("Network", "Security")}
    of_servers |= {"max_body", "profile", "access_log", "log_level"}
    known = [option.name for option in options() if option.name not in of_servers]
    for key in keywords:
        if key in of_servers:
            raise SetupError(f"{key!r} is a setting of `onward serve` and has no effect in a program: leave it out.")
        if key not in known:
            raise SetupError(f"there is no setting {key!r}{_suggestion(key, known)}")
    return _from_table(keywords, "the call", lambda name: f"keyword {name}")


def _suggestion(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f". Known are: {', '.join(known)}."


def _table_value(option: Option, value: object, place: str) -> str | list[str]:
    """A TOML value as the text a flag would carry; `[alias]` may also be a table."""
    if option.many:
        if isinstance(value, dict):
            value = [f"{left}={right}" for left, right in value.items()]
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        return list(map(_as_text, items))
    if isinstance(value, (list, dict)):
        raise SetupError(f"{option.name} in {place} takes a single value, not a {type(value).__name__}.")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_together(settings: Settings) -> None:
    if settings.no_auth and (settings.api_key or settings.api_key_file):
        raise SetupError("--no-auth and API keys exclude each other: give one of them.")
