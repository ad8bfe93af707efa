"""The `Settings`, declared once for flags, ONWARD_* environment variables, onward.toml and the reference page.

Precedence: flags > environment > file > defaults. `resolve` also returns the origin of each value.
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
"""Variables that are not settings: the path of the settings file, and what the command line sends to other servers."""

log = logging.getLogger("onward.settings")


@dataclass(frozen=True, slots=True)
class Option:
    """How one field of Settings is spelled and parsed, in all places where it can be set."""

    name: str
    flag: str
    environment: str
    group: Group
    help: str
    metavar: str
    parser: Callable[[str], Any]
    """Converts text to the value. Raises ValueError with the rule that the text breaks ("must be …")."""
    default: Any
    is_repeatable: bool
    """Whether the value is a tuple. In the environment its items are separated by commas."""
    is_boolean: bool
    is_secret: bool

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


def _option(
    default: T,
    group: Group,
    parser: Callable[[str], Any],
    help: str,
    *,
    metavar: str = "",
    is_repeatable: bool = False,
    is_secret: bool = False,
) -> T:
    metadata: dict[str, object] = {"group": group, "parser": parser, "help": help, "metavar": metavar}
    metadata |= {"is_repeatable": is_repeatable, "is_secret": is_secret}
    declared: T = field(default=default, metadata=metadata)
    return declared


def home_folder() -> Path:
    """Return the user's home folder, or /nonexistent for a user without one (a container with an arbitrary user id)."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")


def cache_folder() -> Path:
    """Return the default folder for downloads and compiled models: $XDG_CACHE_HOME/onward, or ~/.cache/onward."""
    return Path(os.environ.get("XDG_CACHE_HOME") or home_folder() / ".cache") / "onward"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that an operator can configure. Sizes are in bytes, durations in seconds."""

    model: tuple[str, ...] = _option(
        ("storyteller",), "Model", values.string,
        "Model to serve: a built-in name, a folder, or a Hugging Face id. Repeatable; the first is the default model.",
        metavar="NAME_OR_PATH", is_repeatable=True,
    )  # fmt: skip
    alias: tuple[tuple[str, str], ...] = _option(
        (), "Model", values.alias, "Additional name for a model. Repeatable.",
        metavar="NAME=MODEL", is_repeatable=True,
    )  # fmt: skip
    context_length: int = _option(
        0, "Model", values.integer(0),
        "Maximum number of tokens in prompt and completion together; 0: the model's own limit.",
        metavar="TOKENS",
    )  # fmt: skip
    cache_dir: Path = _option(  # noqa: RUF009
        cache_folder(), "Model", values.path, "Folder for downloaded and compiled models.", metavar="PATH"
    )
    host: str = _option(
        "127.0.0.1", "Network", values.string,
        "Address to listen on. Any address but a loopback address requires an API key or --no-auth.", metavar="HOST",
    )  # fmt: skip
    port: int = _option(
        8000, "Network", values.integer(0, 65535), "Port to listen on; 0: any free port.", metavar="PORT"
    )
    keep_alive: float = _option(
        15.0, "Network", values.seconds,
        "Interval of the comment lines that keep a silent stream from timing out in proxies and clients; 0: none.",
        metavar="SECONDS",
    )  # fmt: skip
    drain: float = _option(
        30.0, "Network", values.seconds, "How long running requests may continue after Ctrl-C, SIGTERM or SIGHUP.",
        metavar="SECONDS",
    )  # fmt: skip
    api_key: tuple[str, ...] = _option(
        (), "Security", values.api_key,
        "API key that clients must send. Repeatable. Other users of the machine can see flags: prefer --api-key-file.",
        metavar="KEY", is_repeatable=True, is_secret=True,
    )  # fmt: skip
    api_key_file: Path | None = _option(  # noqa: RUF009
        None, "Security", values.path, "File of API keys, one per line; lines that begin with # are comments.",
        metavar="PATH",
    )  # fmt: skip
    no_auth: bool = _option(False, "Security", values.boolean, "Accept requests without an API key on any address.")
    profile: Literal["strict", "default", "lenient"] = _option(
        "default", "Limits", values.choice("strict", "default", "lenient"),
        "strict: exactly OpenAI's fields and limits. default: also the extensions that real clients send. "
        "lenient: unknown fields are ignored, any number of stop strings is accepted, the model may be omitted, and "
        "a server with one model accepts every model name.",
    )  # fmt: skip
    max_body: int = _option(
        32_000_000,
        "Limits",
        values.size,
        "Maximum size of a request body; larger bodies are rejected with 413.",
        metavar="SIZE",
    )
    max_waiting: int = _option(
        1024, "Limits", values.integer(0),
        "Maximum number of sequences in the waiting queue, by default 16 full batches; "
        "further requests are rejected with 503 and Retry-After.", metavar="SEQUENCES",
    )  # fmt: skip
    max_parallel: int = _option(
        2048, "Limits", values.integer(1),
        "Maximum number of choices (prompts x candidates) of one request; 8 times as many when `max_tokens` is 0.",
        metavar="CHOICES",
    )  # fmt: skip
    content_filter: tuple[ContentFilterSetting, ...] = _option(
        (), "Limits", values.content_filter,
        "Text that must not leave the server, as a JSON object. Repeatable; in the settings file, [[content_filter]].",
        metavar="JSON", is_repeatable=True,
    )  # fmt: skip
    max_rows: int = _option(
        64,
        "Performance",
        values.integer(1),
        "Maximum number of sequences computed together in one step.",
        metavar="SEQUENCES",
    )
    kv_memory: int | None = _option(
        None, "Performance", values.size_or_auto,
        "Memory for the KV cache; auto: a fraction of the free memory.", metavar="SIZE|auto",
    )  # fmt: skip
    threads: int = _option(
        0, "Performance", values.integer(0), "Threads that run the model; 0: one per core.", metavar="N"
    )
    precision: Literal["fast", "exact"] = _option(
        "fast", "Performance", values.choice("fast", "exact"),
        "fast: the arithmetic that is fastest on this processor. exact: 32-bit floating point.",
    )  # fmt: skip
    prefix_cache: bool = _option(
        True,
        "Performance",
        values.boolean,
        "Reuse the KV cache of earlier prompts for requests that begin with the same tokens.",
    )
    speculation: Literal["auto", "off"] = _option(
        "auto", "Performance", values.choice("auto", "off"),
        "auto: draft tokens from a request's prediction and from repeated text, and verify several per step. "
        "It never changes a token: off is for benchmarks.",
    )  # fmt: skip
    log_level: Literal["debug", "info", "warning", "error"] = _option(
        "info", "Logging", values.choice("debug", "info", "warning", "error"), "Minimum severity of log messages."
    )
    access_log: bool = _option(True, "Logging", values.boolean, "Log one line per request.")

    def __repr__(self) -> str:
        """Secrets are counted, not shown."""
        shown = (f"{option.name}={_masked(option, getattr(self, option.name))!r}" for option in options())
        return f"Settings({', '.join(shown)})"


def _masked(option: Option, value: Any) -> Any:
    return f"<{len(value)} hidden>" if option.is_secret and value else value


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings, and the origin of each value by field name: a flag, a variable, a file or "default"."""

    settings: Settings
    origins: Mapping[str, str]


@cache
def options() -> tuple[Option, ...]:
    """Return every setting, in order of declaration."""
    return tuple(_as_option(declared) for declared in fields(Settings))


def _as_option(declared: Field[Any]) -> Option:
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
    )


def resolve(
    flags: Mapping[str, str | list[str]] | None = None,
    *,
    keywords: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Resolved:
    """Return every setting with its origin.

    `flags` are texts by field name, `keywords` the Python API's arguments with values as in a file, `config` is the
    file named by --config. Reads the environment (`os.environ` if `environ` is None) and at most one file. Logs a
    warning for each unknown ONWARD_* variable. Raises SetupError.
    """
    environ = os.environ if environ is None else environ
    if config is None and environ.get(CONFIG_ENVIRONMENT):
        config = Path(environ[CONFIG_ENVIRONMENT])
    given = _from_file(config, environ) | _from_environment(environ) | _from_flags(flags or {})
    given |= _from_keywords(keywords or {})
    by_name = {option.name: option for option in options()}
    parsed = {name: by_name[name].parse(raw, origin) for name, (raw, origin) in given.items()}
    settings = Settings(**parsed)
    _check_conflicts(settings)
    origins = {name: given[name][1] if name in given else "default" for name in by_name}
    return Resolved(settings, origins)


def _warn_of_unknown_variables(environ: Mapping[str, str]) -> None:
    known = [option.environment for option in options()]
    for name in environ:
        if name.startswith("ONWARD_") and name not in {*known, *OTHER_VARIABLES}:
            close = difflib.get_close_matches(name, known, n=1)
            log.warning("%s is not a setting and is ignored%s", name, f"; did you mean {close[0]}?" if close else "")


Given = dict[str, tuple[str | list[str], str]]
"""Text (or texts) and origin, by field name."""


def _from_flags(flags: Mapping[str, str | list[str]]) -> Given:
    return {option.name: (flags[option.name], option.flag) for option in options() if option.name in flags}


def _from_environment(environ: Mapping[str, str]) -> Given:
    found: Given = {}
    _warn_of_unknown_variables(environ)
    for option in options():
        if raw := environ.get(option.environment):
            found[option.name] = (_split_items(raw) if option.is_repeatable else raw, option.environment)
    return found


def _as_text(item: object) -> str:
    """Return one of several values as the text of a flag."""
    return json.dumps(item) if isinstance(item, dict) else str(item)


def _split_items(raw: str) -> list[str]:
    """Return the items of a variable: separated by commas, or a JSON object or array."""
    if raw.lstrip().startswith(("[", "{")):
        try:
            value = json.loads(raw)
        except json.JSONDecodeError:
            pass
        else:
            return list(map(_as_text, value if isinstance(value, list) else [value]))
    return [part.strip() for part in raw.split(",") if part.strip()]


def _config_paths(environ: Mapping[str, str]) -> Iterator[Path]:
    yield Path("onward.toml")
    home = environ.get("XDG_CONFIG_HOME") or str(home_folder() / ".config")
    yield Path(home) / "onward" / "onward.toml"


def _from_file(config: Path | None, environ: Mapping[str, str]) -> Given:
    path = config or next((each for each in _config_paths(environ) if each.is_file()), None)
    if path is None:
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise SetupError(f"The settings file {path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError as problem:
        reason = f"{problem.reason} at byte {problem.start}"
        raise SetupError(f"The settings file {path} is not valid UTF-8 ({reason}).") from None
    except tomllib.TOMLDecodeError as problem:
        raise SetupError(f"The settings file {path} is not valid TOML: {problem}.") from None
    return _from_table(table, str(path))


def _from_table(table: Mapping[str, object], place: str) -> Given:
    """Return texts and origins; None means the default. Raises SetupError for unknown names."""
    by_name = {option.name: option for option in options()}
    found: Given = {}
    for key, value in table.items():
        if key not in by_name:
            raise SetupError(f"Unknown setting {key!r} in {place}{_suggestion(key, list(by_name))}")
        if value is not None:
            found[key] = (_table_value(by_name[key], value, place), place)
    return found


def _from_keywords(keywords: Mapping[str, object]) -> Given:
    """Return the Python API's arguments. Raises SetupError for settings that only affect a server."""
    server_only = {option.name for option in options() if option.group in ("Network", "Security")}
    server_only |= {"max_body", "profile", "access_log", "log_level"}
    known = [option.name for option in options() if option.name not in server_only]
    for key in keywords:
        if key in server_only:
            raise SetupError(f"{key!r} only affects `onward serve`: remove it from the keyword arguments.")
        if key not in known:
            raise SetupError(f"{key!r} is not a setting{_suggestion(key, known)}")
    return _from_table(keywords, "the keyword arguments")


def _suggestion(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key.replace("-", "_"), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f". The settings are: {', '.join(known)}."


def _table_value(option: Option, value: object, place: str) -> str | list[str]:
    """Return a TOML value as the text of a flag; `[alias]` may also be a table. Raises SetupError."""
    if option.is_repeatable:
        if isinstance(value, dict):
            value = [f"{left}={right}" for left, right in value.items()]
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        return list(map(_as_text, items))
    if isinstance(value, (list, dict)):
        raise SetupError(f"{option.name} in {place} must be a single value, not a {type(value).__name__}.")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_conflicts(settings: Settings) -> None:
    if settings.no_auth and (settings.api_key or settings.api_key_file):
        raise SetupError("--no-auth cannot be combined with --api-key or --api-key-file: remove one of them.")
