"""Where settings come from: flags, ONWARD_* environment variables, onward.toml, keyword arguments.

Precedence: flags > environment > file > defaults. `resolve` also returns the origin of each value.

onward.toml of the current folder may be another's, since nobody named it. It is read only if it belongs to the user or
to the system. It never chooses where files are written, where traces go, or which database is used. Commands that a
person runs in any folder let it choose neither code nor what is downloaded; `onward serve`, which it is made for, does.
"""

from __future__ import annotations

import difflib
import json
import logging
import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from onward.errors import SetupError
from onward.folders import home_folder
from onward.settings.declared import Settings, options
from onward.settings.names import is_openai_name
from onward.settings.option import Option

log = logging.getLogger("onward.settings")

FOUND_FILE = "onward.toml"
LIMITED = frozenset(
    {
        *("cache_dir", "database", "data_dir", "log_requests", "otlp_endpoint"),
        *("prefix_cache_dir", "prefix_cache_disk"),
    }
)
"""Settings that a file found in the current folder does not choose."""
NEEDED = frozenset({"database", "data_dir"})
"""Those of them without which a server would not be the one that was meant: it would have no limits."""
PROGRAMS = ("engine", "engine_path", "engine_arg")
"""Settings that such a file chooses for no command: they start programs."""
REMEDY = f"pass --config {FOUND_FILE}, or set ONWARD_CONFIG={FOUND_FILE}, to use it"

CONFIG_ENVIRONMENT = "ONWARD_CONFIG"
OTHER_VARIABLES = frozenset({CONFIG_ENVIRONMENT, "ONWARD_BASE_URL"})
"""Variables that are not settings: the path of the settings file, and the server that the command line uses."""
MAX_FILE_BYTES = 1_000_000

Given = dict[str, tuple[str | list[str], str]]
"""Text (or texts) and origin, by field name."""


def check_owner(path: Path) -> None:
    """Raise SetupError if anyone but the user and the system may have written a file that was found, not named."""
    if os.name != "posix":
        return
    try:
        found = path.stat()
    except OSError:
        return  # reading it says why
    if found.st_uid not in (0, os.geteuid()):
        raise SetupError(f"The settings file {path} in this folder belongs to another user; {REMEDY}.")
    if found.st_mode & stat.S_IWOTH:
        raise SetupError(
            f"The settings file {path} in this folder can be written by every user; run chmod o-w on it, or {REMEDY}."
        )


def check_programs(names: Iterable[str]) -> None:
    """Raise SetupError if a file that was found, not named, chooses programs to start. `names`: what it sets."""
    for name in names:
        if name in PROGRAMS:
            raise SetupError(
                f"{name} in {FOUND_FILE} of this folder would choose a program to start, which only a settings file "
                f"that was named may do; {REMEDY}."
            )


def check_needed(ignored: Iterable[str]) -> None:
    """Raise SetupError if a file that was found, not named, chooses what a server must not ignore."""
    for name in sorted(NEEDED.intersection(ignored)):
        raise SetupError(
            f"{FOUND_FILE} in this folder sets {name}, which only a settings file that was named may choose; {REMEDY}."
        )


def check_code(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise SetupError if a file that was found, not named, chooses code to run. It is not ignored: it may have been
    meant to keep text from being shown."""
    if origins["content_filter"] != FOUND_FILE:
        return
    for each in settings.content_filter:
        if each.entry_point is not None:
            raise SetupError(
                f"The content filter {each.name!r} of {FOUND_FILE} in this folder would run code, which only a "
                f"settings file that was named may choose; {REMEDY}."
            )


@dataclass(frozen=True, slots=True)
class Resolved:
    """Settings, and the origin of each value by field name: a flag, a variable, a file or "default"."""

    settings: Settings
    origins: Mapping[str, str]
    uses_found_file: bool = False
    """Whether onward.toml of the current folder was read, which nobody named."""
    ignored: tuple[str, ...] = ()
    """What that file sets without effect: it does not choose folders or the database."""
    file: Path | None = None
    """The settings file that was read."""
    resolve_again: Callable[[], Resolved] | None = field(default=None, repr=False, compare=False)

    def may_download(self, *names: str) -> bool:
        """Return whether the models of these names (those of the settings, without any) may be downloaded: not if
        the file of the current folder chose them."""
        if not self.uses_found_file:
            return True
        if not names:
            return self.origins["model"] != FOUND_FILE
        aliases = dict(self.settings.alias)
        if self.origins["model"] == FOUND_FILE and any(is_openai_name(name, self.settings) for name in names):
            return False
        return self.origins["alias"] != FOUND_FILE or not any(name in aliases for name in names)

    def again(self) -> Settings:
        """Read the settings again, from the same places. Raises SetupError, also where another file would be read than
        the first time: without the file that was there, all its settings would be gone."""
        assert self.resolve_again is not None
        found = self.resolve_again()
        if found.file != self.file:
            now = found.file or "no file"
            raise SetupError(f"The settings came from {self.file}, and would now come from {now}: put that right.")
        return found.settings

    @property
    def announcement(self) -> str | None:
        """One line that says what the file of the current folder chose; None if it chose nothing."""
        chosen = [name for name, origin in self.origins.items() if origin == FOUND_FILE]
        if not self.uses_found_file or not (chosen or self.ignored):
            return None
        words = ", ".join(chosen) or "nothing"
        ignored = f" (not for {', '.join(self.ignored)}: {REMEDY})" if self.ignored else ""
        return f"Using {FOUND_FILE} of this folder for {words}{ignored}"


def resolve(
    flags: Mapping[str, str | list[str]] | None = None,
    *,
    keywords: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
    limits_found_file: bool = False,
) -> Resolved:
    """Return every setting with its origin.

    `flags` are texts by field name, `keywords` the Python API's arguments with values as in a file, `config` is the
    file named by --config. Reads the environment (`os.environ` if `environ` is None) and at most one file. Logs a
    warning for each unknown ONWARD_* variable. Raises SetupError.

    `limits_found_file`: onward.toml of the current folder chooses no code; folders and the database it never chooses.
    """
    again = partial(
        resolve, flags, keywords=keywords, environ=environ, config=config, limits_found_file=limits_found_file
    )
    environ = os.environ if environ is None else environ
    if config is None and environ.get(CONFIG_ENVIRONMENT):
        config = Path(environ[CONFIG_ENVIRONMENT])
    path = config or _config_file(environ)
    is_found = config is None and path == Path(FOUND_FILE)
    from_file = _from_file(path, is_found=is_found) if path is not None else {}
    if is_found:
        check_programs(from_file)
    ignored = [name for name in from_file if name in LIMITED] if is_found else []
    given = {name: value for name, value in from_file.items() if name not in ignored}
    given |= _from_environment(environ) | _from_flags(flags or {}) | _from_keywords(keywords or {})
    if not limits_found_file:
        check_needed(name for name in ignored if name not in given)
    by_name = {option.name: option for option in options()}
    parsed = {name: by_name[name].parse(raw, origin) for name, (raw, origin) in given.items()}
    settings = Settings(**parsed)
    _check_conflicts(settings)
    origins = {name: given[name][1] if name in given else "default" for name in by_name}
    if is_found and limits_found_file:
        check_code(settings, origins)
    return Resolved(settings, origins, is_found, tuple(ignored), path, again)


def _warn_of_unknown_variables(environ: Mapping[str, str]) -> None:
    known = [option.environment for option in options()]
    for name in environ:
        if name.startswith("ONWARD_") and name not in {*known, *OTHER_VARIABLES}:
            close = difflib.get_close_matches(name, known, n=1)
            log.warning("%s is not a setting and is ignored%s", name, f"; did you mean {close[0]}?" if close else "")


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


def _config_file(environ: Mapping[str, str]) -> Path | None:
    """Return the settings file that nobody named: that of the current folder, or else the user's. In the folder of the
    user's they are one file, and it is the user's."""
    users = _users_folder(environ) / FOUND_FILE
    found = next(filter(_is_file, (Path(FOUND_FILE), users)), None)
    with suppress(OSError):
        if found is not None and found.samefile(users):
            return users
    return found


def _users_folder(environ: Mapping[str, str]) -> Path:
    """Return the user's folder for settings: systemd's $CONFIGURATION_DIRECTORY, $XDG_CONFIG_HOME/onward, or
    ~/.config/onward."""
    if (given := Path(environ.get("CONFIGURATION_DIRECTORY", "").partition(":")[0])).is_absolute():
        return given
    return Path(environ.get("XDG_CONFIG_HOME") or home_folder() / ".config") / "onward"


def _is_file(path: Path) -> bool:
    """Return whether there is a settings file, also in folders that the user may not enter: a service may have the home
    folder of another user. That is logged."""
    try:
        return path.is_file()
    except OSError as problem:
        log.warning("there may be settings in %s, which cannot be read: %s", path, problem.strerror)
        return False


def _from_file(path: Path, *, is_found: bool) -> Given:
    if is_found:
        check_owner(path)
    try:
        if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
            raise SetupError(f"The settings file {path} is larger than {MAX_FILE_BYTES // 1_000_000} MB.")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise SetupError(f"The settings file {path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError as problem:
        reason = f"{problem.reason} at byte {problem.start}"
        raise SetupError(f"The settings file {path} is not valid UTF-8 ({reason}).") from None
    except tomllib.TOMLDecodeError as problem:
        raise SetupError(f"The settings file {path} is not valid TOML: {problem}.") from None
    except RecursionError:
        raise SetupError(f"The settings file {path} is nested too deeply.") from None
    return _from_table(table, str(path))


def _from_table(table: Mapping[str, object], place: str) -> Given:
    """Return texts and origins; None means the default. Raises SetupError for unknown names."""
    by_name = {option.name: option for option in options()}
    found: Given = {}
    for key, value in table.items():
        if key not in by_name and isinstance(value, dict):
            raise SetupError(f"{place} has a table [{key}]: settings are written without tables, such as port = 8000.")
        if key not in by_name:
            raise SetupError(f"Unknown setting {key!r} in {place}{_suggestion(key, list(by_name))}")
        if value is not None:
            found[key] = (_table_value(by_name[key], value, place), place)
    return found


def _from_keywords(keywords: Mapping[str, object]) -> Given:
    """Return the Python API's arguments. Raises SetupError for settings that only affect a server."""
    server_only = {option.name for option in options() if option.is_server_only}
    known = [option.name for option in options() if not option.is_server_only]
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
        raise SetupError(f"{option.name} in {place} must be a single value.")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_conflicts(settings: Settings) -> None:
    if settings.no_auth and (settings.api_key or settings.api_key_file):
        raise SetupError("--no-auth cannot be combined with --api-key or --api-key-file: remove one of them.")
    if settings.prefix_cache_dir is not None and not settings.prefix_cache:
        raise SetupError("--prefix-cache-dir cannot be combined with --no-prefix-cache: remove one of them.")
